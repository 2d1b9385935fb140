#!/usr/bin/env bash
# What documents cost that are written through larder, beside the same rows written to PostgreSQL by hand.
#
#   loadtest/posts.sh [ROUNDS] [SECONDS] [BULK]      default: 5 5 20000
#
# POST of one document of 11 rows at 64 connections, against pgbench with 64 clients that run the same two inserts as
# one prepared transaction a document; synchronous_commit is on. Then BULK documents as one NDJSON stream, against COPY
# of the same rows into the same tables, triggers, indexes and all. All take turns; medians, least and greatest ratio.
# shellcheck source=loadtest/larder.sh
. "$(dirname "$0")/larder.sh"
need 'on Debian: apt-get install wrk postgresql python3' wrk pgbench psql python3
rounds=${1:-5} seconds=${2:-5} bulk=${3:-20000}

"$larder" seed --depts 1000 --log-level warn
serve
database=$(grep -om1 'postgres://[^ ]*' "$work/out")
# Room for whatever the turns write; each has keys of its own.
key=1000000000
next_key() { key=$((key + 200000000)); }

cat > "$work/insert.sql" << 'SQL'
\set n :n + 1
\set k :first + :client_id * 1000000 + :n
begin;
insert into dept (deptno, dname, loc) values (:k, 'ACCOUNTING', 'NEW YORK');
insert into emp (empno, ename, job, mgr, hiredate, sal, comm, deptno) values
SQL
for i in $(seq 0 9); do
  printf "  (:k::bigint * 10 + %d, 'EMPLOYEE %d', 'CLERK', :k, '2026-01-02T03:04:05', %d, null, :k)%s\n" \
    "$i" "$i" "$((1000 + i))" "$([ "$i" = 9 ] && echo ';' || echo ',')" >> "$work/insert.sql"
done
echo 'commit;' >> "$work/insert.sql"

by_pgbench() {
  pgbench "$database" -n -M prepared -c 64 -j 2 -T "$seconds" -D n=0 -D "first=$key" -f "$work/insert.sql" 2> /dev/null |
    awk '/tps/ {print $3}'
}
by_post() {
  wrk -t1 -c64 -d"${seconds}s" --timeout 10s -s loadtest/posts.lua "$url" -- "$key" | grep '^{' |
    python3 -c '
import json, sys
told = json.load(sys.stdin)
print("POST:", told, file=sys.stderr)
assert told["errors"] == 0, told
print(told["per_second"])'
}
# Files of BULK documents from $key on.
write_bulk() {
  python3 - "$key" "$bulk" "$work" << 'PY'
import sys
first, count, work = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with open(work + "/bulk.ndjson", "w") as lines, open(work + "/dept.csv", "w") as dept, open(work + "/emp.csv", "w") as emp:
    for key in range(first, first + count):
        emps = ",".join(
            f'{{"empNo":{key * 10 + i},"empName":"EMPLOYEE {i}","job":"CLERK","mgr":{key},"hiredate":"2026-01-02T03:04:05","sal":{1000 + i},"comm":null,"deptNumber":{key}}}'
            for i in range(10))
        lines.write(f'{{"deptNumber":{key},"deptName":"ACCOUNTING","deptLocation":"NEW YORK","emps":[{emps}]}}\n')
        other = key + 100000000
        dept.write(f"{other},ACCOUNTING,NEW YORK\n")
        for i in range(10):
            emp.write(f"{other * 10 + i},EMPLOYEE {i},CLERK,{other},2026-01-02T03:04:05,{1000 + i},,{other}\n")
PY
}
now() { date +%s%N; }
by_copy() {
  local began
  began=$(now)
  psql "$database" -qc begin -c "\\copy dept (deptno, dname, loc) from $work/dept.csv csv" \
    -c "\\copy emp (empno, ename, job, mgr, hiredate, sal, comm, deptno) from $work/emp.csv csv" -c commit
  python3 -c "print($bulk * 11e9 / ($(now) - $began))"
}
by_ndjson() {
  local began
  began=$(now)
  curl -sf -o "$work/bulk.answer" -H 'Content-Type: application/x-ndjson' -T "$work/bulk.ndjson" -X POST "$url/depts"
  python3 -c "print($bulk * 11e9 / ($(now) - $began))"
  [ "$(psql "$database" -Atc "select count(*) from emp where deptno >= $key and deptno < $key + $bulk")" = $((10 * bulk)) ]
}

for round in $(seq "$rounds"); do
  next_key
  post=$(by_post)
  next_key
  echo "single $post $(by_pgbench)"
  next_key
  write_bulk
  if ((round % 2)); then a=$(by_copy); b=$(by_ndjson); else b=$(by_ndjson); a=$(by_copy); fi
  echo "bulk $b $a"
done | python3 -c '
import statistics, sys
turns = {}
for line in sys.stdin:
    name, larder, hand = line.split()
    turns.setdefault(name, []).append((float(larder), float(hand)))
names = {"single": ("documents/s, POST at 64 to pgbench at 64", 2), "bulk": ("rows/s, NDJSON to COPY", 0.5)}
for name, pairs in turns.items():
    larder, hand = (statistics.median(column) for column in zip(*pairs))
    ratios = [a / b for a, b in pairs]
    what, goal = names[name]
    print(f"{what}: {larder:.0f} to {hand:.0f}, {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}), goal {goal}")'
