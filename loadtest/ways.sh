#!/usr/bin/env bash
# What other ways to documents in memory cost beside a GET of each over HTTP/1.1, and what a storm of invalidations
# does to these: beside the very same changes in a table that larder does not watch, since any writer takes time of the
# two cores.
#
#   loadtest/ways.sh [DEPTS] [REQUESTS] [ROUNDS]      default: 100000 200000 5
#
# larder's one worker on core 0, h2load on core 1; all take turns. Each connection asks for the same random keys one
# after the other, as h2load does it. Prints medians, and the median, least and greatest ratio to another turn of the
# same round: documents/s, and larder's CPU time for each. In the storm pgbench changes 20,000 other documents per
# second, all in memory at its beginning, 2,000 in each transaction, on whatever core has time for PostgreSQL.
# shellcheck source=loadtest/larder.sh
. "$(dirname "$0")/larder.sh"
need 'on Debian: apt-get install nghttp2-client postgresql python3' h2load pgbench psql python3
depts=${1:-100000} requests=${2:-200000} rounds=${3:-5}
# Of each connection, in whole lists.
keys=$((requests / 128 / 100 * 100))
((keys > 0)) || { echo "$requests requests are fewer than a list of 100 for each of 128 connections" >&2; exit 1; }

# The second half is for the storm.
"$larder" seed --depts "$((2 * depts))" --log-level warn
export LARDER_WORKERS=1
serve --tiers memory
fill "$((2 * depts))"
taskset -ap -c 0 "$pid" > /dev/null
database=$(grep -om1 'postgres://[^ ]*' "$work/out")
psql "$database" -qc 'create table unwatched (like dept including all)' \
  -c 'insert into unwatched table dept' -c 'vacuum analyze unwatched' -c 'vacuum analyze dept'

lists() { paste -sd "$(printf ',%.0s' $(seq 99))\n" | sed "s|^|$url/depts?keys=|"; }
shuf -r -i "1-$depts" -n "$keys" > "$work/keys"
sed "s|^|$url/depts/|" "$work/keys" > "$work/single"
lists < "$work/keys" > "$work/hundred"
seq "$((depts + 1))" "$((2 * depts))" | lists > "$work/others"
for table in dept unwatched; do
  cat > "$work/$table.sql" << SQL
\set first random($((depts + 1)), $((2 * depts - 1999)))
update $table set loc = clock_timestamp()::text where deptno between :first and :first + 1999;
SQL
done

ticks() { awk '{print $14 + $15}' "/proc/$pid/stat"; }
invalidated() {
  curl -s "http://$LARDER_ADMIN/metrics" | awk '/^larder_invalidations_total/ {sum += $2} END {print sum + 0}'
}

# turn NAME DOCUMENTS ARGUMENT...: requests by h2load, each for so many documents. A line of name, documents/s, us each.
turn() {
  local name=$1 documents=$2 before after
  shift 2
  before=$(ticks)
  taskset -c 1 h2load -t1 -n "$((requests / documents))" "$@" > "$work/h2load"
  after=$(ticks)
  grep -q ' 0 failed, 0 errored, 0 timeout' "$work/h2load" || { cat "$work/h2load" >&2; return 1; }
  awk -v name="$name" -v documents="$documents" -v ticks="$((after - before))" -v hertz="$(getconf CLK_TCK)" '
    /^finished/ {rate = $4 * documents}
    /^requests:/ {printf "%s %s %s\n", name, rate, ticks / hertz * 1e6 / ($8 * documents)}' "$work/h2load"
}

# beside NAME TABLE: GETs while documents' rows in TABLE change.
beside() {
  local name=$1 table=$2 writer began before
  h2load --h1 -c1 -n "$(wc -l < "$work/others")" -i "$work/others" > /dev/null
  pgbench "$database" -n -R 10 -T 600 -P 1 -f "$work/$table.sql" > "$work/pgbench" 2>&1 &
  writer=$! began=$(date +%s%N) before=$(invalidated)
  turn "$name" 1 --h1 -c128 -i "$work/single"
  echo "$name: $(awk '/^progress/ {n++; sum += $4} END {print n ? sum / n * 2000 : 0}' "$work/pgbench") rows changed/s," \
    "$((($(invalidated) - before) * 1000000000 / ($(date +%s%N) - began))) invalidated/s" >&2
  kill "$writer"
  wait "$writer" || true
}

for round in $(seq "$rounds"); do
  turn GET 1 --h1 -c128 -i "$work/single"
  turn HTTP/2 1 -c1 -m100 -i "$work/single"
  turn 304 1 --h1 -c128 -H 'if-none-match: *' -i "$work/single"
  turn keys 100 --h1 -c128 -i "$work/hundred"
  # By turns the first, as the one may leave work for autovacuum to the other.
  if ((round % 2)); then beside control unwatched; fi
  beside storm dept
  if ((round % 2 == 0)); then beside control unwatched; fi
done | python3 -c '
import statistics, sys
turns = {}
for line in sys.stdin:
    name, rate, micros = line.split()
    turns.setdefault(name, []).append((float(rate), float(micros)))
for name, to in [(name, "GET") for name in turns] + [("storm", "control")]:
    medians = [statistics.median(column) for column in zip(*turns[name])]
    ratios = zip(*([a / b for a, b in zip(*pair)] for pair in zip(turns[name], turns[to])))
    rate, micros = (f"{statistics.median(r):.2f} ({min(r):.2f}-{max(r):.2f})" for r in ratios)
    print(f"{name:8} {medians[0]:10.0f}/s {medians[1]:6.2f} us, to {to:8} documents/s {rate}, CPU time {micros}")'
