#!/usr/bin/env bash
# What larder costs those who write: a table with its triggers and a listening larder, against a copy without.
#
#   loadtest/writers.sh [PAIRS] [SECONDS]      default: 15 3
#
# Prints the median, least and greatest ratio over PAIRS interleaved pairs: of commits/s of 16 clients that update
# single rows, with synchronous_commit on and off, and of the time of one statement that updates 100,000 rows.
# Starts its own larder with a private PostgreSQL on loopback, and stops both. Needs pgbench, psql and python3.
set -euo pipefail
cd "$(dirname "$0")/.."
pairs=${1:-15} seconds=${2:-3}
PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)
for tool in pgbench psql python3; do
  command -v "$tool" > /dev/null || { echo "$tool is missing; on Debian: apt-get install postgresql python3" >&2; exit 1; }
done

cargo build --release --locked
larder=$(realpath target/release/larder)
work=$(mktemp -d)
chmod 755 "$work"
pid=''
stop() { if [ -n "$pid" ]; then kill "$pid" 2> /dev/null || true; wait "$pid" || true; pid=''; fi; }
trap 'stop; rm -rf "$work"' EXIT
export LARDER_STATE_DIR=$work/state LARDER_LISTEN=127.0.0.1:18480 LARDER_ADMIN=127.0.0.1:18481
"$larder" seed --depts 10000 --log-level warn
"$larder" serve > "$work/out" 2> "$work/log" &
pid=$!
for _ in $(seq 100); do
  grep -q postgres:// "$work/out" && break
  sleep 0.1
done
url=$(grep -om1 'postgres://[^ ]*' "$work/out")
psql "$url" -qc 'create table plain (like emp including all)' -c 'insert into plain table emp' \
  -c 'vacuum analyze plain' -c 'vacuum analyze emp'
keys=$(psql "$url" -Atc 'select string_agg(empno::text, $$,$$ order by empno) from (select min(empno) as empno from emp union all select max(empno) from emp) x')
for table in emp plain; do
  printf '\\set d random(1, 10000)\n\\set k random(0, 9)\nupdate %s set sal = sal + 1 where empno = :d * 100000 + :k;\n' $table > "$work/$table.sql"
done
[ "$keys" = 100000,1000000009 ] || { echo "the demo's keys are not as expected: $keys" >&2; exit 1; }

# Commits/s of TABLE with synchronous_commit SETTING.
rate() { PGOPTIONS="-c synchronous_commit=$2" pgbench "$url" -n -M prepared -c 16 -j 2 -T "$seconds" -f "$work/$1.sql" 2> /dev/null | awk '/tps/ {print $3}'; }
# Statements/s of an update of every row of TABLE.
bulk() { psql "$url" -qAt -c "vacuum $1" -c checkpoint -c '\timing on' -c "update $1 set sal = sal + 1" | awk '/Time/ {print 1000 / $2}'; }
report() {
  python3 -c '
import statistics, sys
what, pairs = sys.argv[1], [tuple(map(float, line.split())) for line in sys.stdin]
ratios = [on / off for on, off in pairs]
on, off = (statistics.median(column) for column in zip(*pairs))
print(f"{what:34} {on:10.1f} {off:10.1f} {statistics.median(ratios):8.2f}  {min(ratios):.2f}-{max(ratios):.2f}")' "$1"
}
printf '%-34s %10s %10s %8s  %s\n' 'per second' 'triggers' 'none' 'ratio' 'least-greatest'
for setting in on off; do
  for _ in $(seq "$pairs"); do echo "$(rate emp $setting) $(rate plain $setting)"; done | report "commits, synchronous_commit $setting"
done
for _ in $(seq "$pairs"); do echo "$(bulk emp) $(bulk plain)"; done | report 'updates of 100,000 rows'
