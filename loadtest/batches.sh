#!/usr/bin/env bash
# Whether hits in memory stall while the disk tier writes batches.
#
#   loadtest/batches.sh [DEPTS] [RATE] [ROUNDS]      default: 200000 5000 5
#
# wrk on core 1 reads 4,000 documents out of memory by 64 connections, of a larder on core 0 with its writer to disk, by
# turns in quiet and while RATE other documents per second are read for the first time, in lists of 100. A larder
# without a disk tier has the same turns: what reading from PostgreSQL costs the hits by itself. Prints medians, and the
# median, least and greatest ratio to another turn of the same round; after each turn what was filled and written.
# shellcheck source=loadtest/larder.sh
. "$(dirname "$0")/larder.sh"
need 'on Debian: apt-get install nghttp2-client postgresql python3 wrk' h2load psql python3 wrk
depts=${1:-200000} rate=${2:-5000} rounds=${3:-5}
hot=4000 seconds=3
# A list a second longer than wrk's turn, as wrk first makes its requests.
cold=$((rate * (seconds + 1)))
((hot + rounds * cold <= depts)) || { echo "$rounds rounds take $((hot + rounds * cold)) documents" >&2; exit 1; }

"$larder" seed --depts "$depts" --log-level warn
export LARDER_WORKERS=1
serve --tiers memory,disk
database=$(grep -om1 'postgres://[^ ]*' "$work/out")
psql "$database" -qc 'vacuum analyze'
disk=$pid
# Both stay for all rounds; the second one uses the first one's PostgreSQL, and so ends before it.
trap 'stop; pid=$disk; stop; rm -rf "$work"' EXIT
export DATABASE_URL=$database LARDER_STATE_DIR=$work/second LARDER_LISTEN=127.0.0.1:18482 LARDER_ADMIN=127.0.0.1:18483
serve --tiers memory
memory=$pid
for each in "$disk" "$memory"; do taskset -ap -c 0 "$each" > /dev/null; done

# lists PORT FIRST LAST: addresses of so many documents.
lists() { seq "$2" "$3" | paste -sd "$(printf ',%.0s' $(seq 99))\n" | sed "s|^|http://127.0.0.1:$1/depts?keys=|"; }
# read_lists FILE OPTION...: asks for each list once, one after the other.
read_lists() {
  local file=$1
  shift
  taskset -c 1 h2load --h1 -c1 -n "$(wc -l < "$file")" -i "$file" "$@" > "$file.out"
  grep -q "$(wc -l < "$file") succeeded, 0 failed" "$file.out" || { cat "$file.out" >&2; return 1; }
}
# counts ADMIN-PORT: entries in memory, batches and entries written to disk.
counts() {
  curl -s "http://127.0.0.1:$1/metrics" | awk '
    $1 == "larder_tier_entries{tier=\"memory\"}" {memory = $2}
    $1 == "larder_disk_batch_entries_count" {batches = $2}
    $1 == "larder_disk_batch_entries_sum" {entries = $2}
    END {printf "%d in memory, %d to disk in %d batches", memory, entries, batches}'
}

# turn NAME PORT [FIRST]: a line of name, p50 and p99 in ms, requests/s, while documents from FIRST on are filled.
turn() {
  local name=$1 port=$2 filler='' before
  before=$(counts "$((port + 1))")
  if [ "${3:-}" ]; then
    lists "$port" "$3" "$(($3 + cold - 1))" > "$work/cold"
    read_lists "$work/cold" --rps="$((rate / 100))" &
    filler=$!
  fi
  taskset -c 1 wrk -t1 -c64 -d"${seconds}s" -s loadtest/keys.lua "http://127.0.0.1:$port" -- "$hot" > "$work/wrk"
  echo "$name: $before, then $(counts "$((port + 1))")" >&2
  [ ! "$filler" ] || wait "$filler"
  tail -1 "$work/wrk" | python3 -c '
import json, sys
of = json.load(sys.stdin)
assert not any(of[error] for error in ("connect", "read", "write", "status", "timeout")), of
print(sys.argv[1], of["p50"] / 1e3, of["p99"] / 1e3, of["requests"] / of["duration"] * 1e6)' "$name"
}

for port in 18480 18482; do
  lists "$port" 1 "$hot" > "$work/hot"
  read_lists "$work/hot"
done
for round in $(seq "$rounds"); do
  first=$((hot + (round - 1) * cold + 1))
  turn disk-quiet 18480
  turn disk-filling 18480 "$first"
  turn memory-quiet 18482
  turn memory-filling 18482 "$first"
done | python3 -c '
import statistics, sys
turns = {}
for line in sys.stdin:
    name, *figures = line.split()
    turns.setdefault(name, []).append([float(figure) for figure in figures])
for name, figures in turns.items():
    p50, p99, rate = map(statistics.median, zip(*figures))
    print(f"{name:15} p50 {p50:.2f} ms, p99 {p99:.2f} ms, {rate:.0f}/s")
pairs = ["disk-filling disk-quiet", "memory-filling memory-quiet", "disk-filling memory-filling"]
for name, to in map(str.split, pairs):
    ratios = zip(*([a / b for a, b in zip(*pair)] for pair in zip(turns[name], turns[to])))
    p50, p99, rate = (f"{statistics.median(r):.2f} ({min(r):.2f}-{max(r):.2f})" for r in ratios)
    print(f"{name} to {to}: p50 {p50}, p99 {p99}, requests/s {rate}")'
