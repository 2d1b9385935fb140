#!/usr/bin/env bash
# PostgreSQL 18.6. A partition may generate a column by another expression than its parent. A stored one is computed by the
# partition, whichever table a query names. A virtual one is computed by the table that the query names: one row has two
# values.
# Guess before: the partition's expression decides for both.
# Seen: by the parent 102|101, by the partition 102|102.
. "$(dirname "$0")/postgres.sh" 18.6.0

for kind in stored virtual; do
  sql -c "create table $kind (id int, made int generated always as (id + 100) $kind) partition by range (id)" \
    -c "create table ${kind}_part partition of $kind (made generated always as (id + 101) $kind) for values from (0) to (9)" \
    -c "insert into $kind (id) values (1)"
done
same "$(sql -c 'select s.made, v.made from stored s, virtual v')" '102|101'
same "$(sql -c 'select s.made, v.made from stored_part s, virtual_part v')" '102|102'
