# Sourced by oha.sh, ab.sh and profile.sh: starts larder with a private PostgreSQL on loopback; they end with the script. Sets
# $larder, the binary; $url, its address; $work, a directory that is removed at the end. The sourcing script seeds the
# tables, and sets $depts for each_tier.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:$HOME/.cargo/bin:$(printf '%s:' /usr/lib/postgresql/*/bin)

# need HOW TOOL...: ends the script if a tool is missing, and prints how to install it.
need() {
  local how=$1 tool
  shift
  for tool; do
    command -v "$tool" > /dev/null || { echo "$tool is missing: $how" >&2; exit 1; }
  done
}

need 'on Debian: apt-get install curl util-linux' curl taskset
cargo build --release --locked
larder=$(realpath target/release/larder)
work=$(mktemp -d)
chmod 755 "$work"
pid=''
export LARDER_STATE_DIR=$work/state LARDER_LISTEN=127.0.0.1:18480 LARDER_ADMIN=127.0.0.1:18481
export LARDER_MEMORY__MAX_BYTES=4GiB LARDER_DISK__LINGER=100ms
url=http://$LARDER_LISTEN

# serve ARGUMENT...: starts larder and waits until it is ready.
serve() {
  "$larder" serve "$@" > "$work/out" 2> "$work/log" &
  pid=$!
  for _ in $(seq 200); do
    curl -sf "http://$LARDER_ADMIN/readyz" > /dev/null && return
    sleep 0.1
  done
  cat "$work/log" >&2
  return 1
}

# fill DEPTS: reads every document once, and waits until the disk tier has stored them.
fill() {
  seq 1 "$1" | sed "s|.*|url = $url/depts/&\noutput = /dev/null|" | curl -s -Z --parallel-max 64 -K - 2> /dev/null
  sleep 2
}

stop() {
  if [ -n "$pid" ]; then
    kill "$pid" 2> /dev/null || true
    wait "$pid" || true
    pid=''
  fi
}
trap 'stop; rm -rf "$work"' EXIT

# each_tier COMMAND...: for each tier, fills it and runs COMMAND on core 1 against larder with one worker on core 0.
each_tier() {
  export LARDER_WORKERS=1
  for tiers in memory disk none; do
    printf '\n== --tiers %s\n' "$tiers"
    serve --tiers "$tiers"
    fill "$depts"
    taskset -ap -c 0 "$pid" > /dev/null
    (set -x; taskset -c 1 "$@")
    stop
  done
}
