#!/usr/bin/env bash
# What larder costs those who write: a table with its triggers and a listening larder, against a copy without.
#
#   loadtest/writers.sh [PAIRS] [SECONDS]      default: 15 3
#
# Prints the median, least and greatest ratio over PAIRS interleaved pairs: of commits/s of 16 clients that update
# single rows, with synchronous_commit on and off, and of the time of one statement that updates 100,000 rows.
# Needs pgbench, psql and python3.
# shellcheck source=loadtest/larder.sh
. "$(dirname "$0")/larder.sh"
need 'on Debian: apt-get install postgresql python3' pgbench psql python3
pairs=${1:-15} seconds=${2:-3}

"$larder" seed --depts 10000 --log-level warn
serve
database=$(grep -om1 'postgres://[^ ]*' "$work/out")
psql "$database" -qc 'create table plain (like emp including all)' -c 'insert into plain table emp' \
  -c 'vacuum analyze plain' -c 'vacuum analyze emp'
keys=$(psql "$database" -Atc 'select string_agg(empno::text, $$,$$ order by empno) from (select min(empno) as empno from emp union all select max(empno) from emp) x')
for table in emp plain; do
  printf '\\set d random(1, 10000)\n\\set k random(0, 9)\nupdate %s set sal = sal + 1 where empno = :d * 100000 + :k;\n' $table > "$work/$table.sql"
done
[ "$keys" = 100000,1000000009 ] || { echo "the demo's keys are not as expected: $keys" >&2; exit 1; }

# Commits/s of TABLE with synchronous_commit SETTING.
rate() { PGOPTIONS="-c synchronous_commit=$2" pgbench "$database" -n -M prepared -c 16 -j 2 -T "$seconds" -f "$work/$1.sql" 2> /dev/null | awk '/tps/ {print $3}'; }
# Statements/s of an update of every row of TABLE.
bulk() { psql "$database" -qAt -c "vacuum $1" -c checkpoint -c '\timing on' -c "update $1 set sal = sal + 1" | awk '/Time/ {print 1000 / $2}'; }
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
