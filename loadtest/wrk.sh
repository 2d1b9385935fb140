#!/usr/bin/env bash
# One tier at a time under wrk: larder's threads on core 0, wrk on core 1, keep-alive connections, random keys.
#
#   loadtest/wrk.sh [DEPTS] [CONNECTIONS] [SECONDS]      default: 100000 128 8
#
# Prints for memory, disk and none: requests/s, p99, CPU time of larder per request, resident bytes per document.
# Starts its own larder with a private PostgreSQL (which keeps to no core), on loopback, and stops both.
# Needs wrk, curl and taskset.
set -euo pipefail
cd "$(dirname "$0")/.."
depts=${1:-100000} connections=${2:-128} seconds=${3:-8}
for tool in wrk curl taskset; do
  command -v "$tool" > /dev/null || { echo "$tool is missing; on Debian: apt-get install wrk curl util-linux" >&2; exit 1; }
done

cargo build --release --locked
larder=$(realpath target/release/larder)
work=$(mktemp -d)
chmod 755 "$work"
pid=''
stop() { if [ -n "$pid" ]; then kill "$pid" 2> /dev/null || true; wait "$pid" || true; pid=''; fi; }
trap 'stop; rm -rf "$work"' EXIT
export LARDER_STATE_DIR=$work/state LARDER_WORKERS=1 LARDER_MEMORY__MAX_BYTES=4GiB LARDER_DISK__LINGER=100ms
export LARDER_LISTEN=127.0.0.1:18480 LARDER_ADMIN=127.0.0.1:18481
"$larder" seed --depts "$depts" --log-level warn

cat > "$work/keys.lua" << LUA
math.randomseed(42)
request = function() return wrk.format("GET", "/depts/" .. math.random(1, $depts)) end
LUA
keys() { seq "$1" "$2" | sed "s|.*|url = http://$LARDER_LISTEN/depts/&\noutput = /dev/null|"; }
resident() { awk '/VmRSS/ {print $2 * 1024}' "/proc/$pid/status"; }
ticks() { awk '{print $14 + $15}' "/proc/$pid/stat"; }

printf '%-8s %12s %10s %16s %20s\n' tiers requests/s 'p99 ms' 'CPU us/request' 'resident bytes/doc'
for tiers in memory disk none; do
  "$larder" serve --tiers "$tiers" > "$work/out" 2> "$work/log" &
  pid=$!
  for _ in $(seq 100); do
    curl -sf "http://$LARDER_ADMIN/readyz" > /dev/null && break
    sleep 0.1
  done
  per_document=-
  if [ "$tiers" != none ]; then
    # The first thousand pay for buffers and connections; the rest is what documents cost.
    keys 1 1000 | curl -s -Z --parallel-max 64 -K - 2> /dev/null
    before=$(resident)
    keys 1001 "$depts" | curl -s -Z --parallel-max 64 -K - 2> /dev/null
    sleep 2
    [ "$tiers" = memory ] && per_document=$((($(resident) - before) / (depts - 1000)))
  fi
  taskset -ap -c 0 "$pid" > /dev/null
  used=$(ticks)
  taskset -c 1 wrk -t1 -c"$connections" -d"${seconds}s" --latency -s "$work/keys.lua" "http://$LARDER_LISTEN" > "$work/wrk"
  used=$(($(ticks) - used))
  awk -v tiers="$tiers" -v used="$used" -v hz="$(getconf CLK_TCK)" -v per="$per_document" '
    /Requests\/sec/ { rate = $2 }
    / 99%/          { p99 = $2 }
    /requests in/   { count = $1 }
    /Non-2xx/       { print "failed: " $0 > "/dev/stderr" }
    END {
      sub(/ms$/, "", p99)
      printf "%-8s %12.0f %10s %16.1f %20s\n", tiers, rate, p99, used * 1e6 / hz / count, per
    }' "$work/wrk"
  stop
done
