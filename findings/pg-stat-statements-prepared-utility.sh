#!/usr/bin/env bash
# PostgreSQL 18.6 with pg_stat_statements. A statement without a plan (`set`, `fetch` and the like) that a client prepares once by
# the extended protocol and executes four times has one call in the view, while a `select` has four. The rest of its time and rows is
# nowhere: drivers that keep statements prepared show hardly any load from cursors. 15.18 does the same.
# Guess before: `calls` counts executions, whatever the statement and the protocol.
# Seen: the lines below.
. "$(dirname "$0")/postgres.sh" 18.6.0

sql -c 'alter system set shared_preload_libraries = pg_stat_statements'
as_server bin/pg_ctl --silent --wait --mode fast --pgdata data --log log \
  --options "-c listen_addresses= -c unix_socket_directories=$work" restart
sql -c 'create extension pg_stat_statements'
cat > statements.sql <<'END'
begin;
declare numbers cursor for select generate_series(1, 100);
fetch 1 from numbers \parse one
\bind_named one \g /dev/null
\bind_named one \g /dev/null
\bind_named one \g /dev/null
\bind_named one \g /dev/null
commit;
select 42 \parse two
\bind_named two \g /dev/null
\bind_named two \g /dev/null
\bind_named two \g /dev/null
\bind_named two \g /dev/null
END
same "$(sql -f statements.sql)" ''
same "$(sql -c "select calls, query from pg_stat_statements where query ~ '^(fetch|select [\$0-9]+\$)' order by query")" \
'1|fetch 1 from numbers
4|select $1'
