#!/usr/bin/env bash
# PostgreSQL 18.6 with btree_gist. A column of type cidr can be part of an exclusion constraint (`with =`), as an inet can,
# but not of a key `without overlaps`, as an inet can.
# Guess before: what `exclude using gist (… with =)` takes, `without overlaps` takes.
# Seen: the error below.
. "$(dirname "$0")/postgres.sh" 18.6.0

sql -c 'create extension btree_gist'
same "$(sql -c 'create table one (net cidr, during int4range, exclude using gist (net with =, during with &&))')" ''
same "$(sql -c 'create table two (net inet, during int4range, primary key (net, during without overlaps))')" ''
same "$(sql -c 'create table three (net cidr, during int4range, primary key (net, during without overlaps))' | head -n 1)" \
  'ERROR:  could not identify an equality operator for type cidr'
