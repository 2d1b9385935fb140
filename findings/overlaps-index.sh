#!/usr/bin/env bash
# PostgreSQL 18.6. The index of a key `without overlaps` is called unique and immediate in pg_index, as that of a plain
# primary key is, and `on conflict` over the same columns finds no index all the same: it is GiST and also an exclusion
# constraint. Who looks for keys to upsert by has to ask `indisexclusion`, too.
# Guess before: pg_index calls it an exclusion constraint and not unique.
# Seen: indisunique t, indisexclusion t, indimmediate t, and the error below.
. "$(dirname "$0")/postgres.sh" 18.6.0

sql -c 'create extension btree_gist' \
  -c 'create table stay (room int, during int4range, primary key (room, during without overlaps))'
same "$(sql -c "select indisunique, indisexclusion, indimmediate from pg_index where indrelid = 'stay'::regclass")" 't|t|t'
same "$(sql -c "insert into stay values (1, '[1,5)') on conflict (room, during) do nothing")" \
  'ERROR:  there is no unique or exclusion constraint matching the ON CONFLICT specification'
sql -c "insert into stay values (1, '[1,5)'), (1, '[2,3)') on conflict do nothing"
same "$(sql -c 'select during from stay')" '[1,5)'
