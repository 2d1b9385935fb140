-- Schema larder: what committed transactions touched, for every larder that follows this database.
-- Runs in the transaction of `larder install`; every statement may run again.

create schema if not exists larder;

-- Rows that changed, not yet documents. Written by the triggers of larder_* on the configured tables, inside the
-- writer's transaction. xid is the top-level transaction; key is canonical text, null for every row of the path.
-- Truncation by vacuum would lock out the writers; no unique index, for the same reason.
create table if not exists larder.change (
  xid  xid8 not null default pg_current_xact_id(),
  path text not null,
  key  text
) with (vacuum_truncate = off);
create index if not exists change_xid on larder.change (xid);

-- Rows of larder.change below this transaction may have been pruned; it only moves up.
create table if not exists larder.horizon (
  one bool primary key default true check (one),
  xid xid8 not null
);
insert into larder.horizon (xid) values (pg_snapshot_xmin(pg_current_snapshot())) on conflict do nothing;

-- Unlogged on purpose: it empties itself after a crash and on a promoted standby, where the log may have lost rows.
create unlogged table if not exists larder.epoch (
  one   bool primary key default true check (one),
  nonce uuid not null
);

-- The larders that may come back to the log, and how far each has followed it.
create table if not exists larder.node (
  name     uuid primary key,
  position pg_snapshot not null,
  seen_at  timestamptz not null
);

-- Every trigger's WHEN calls this, so that dropping larder.change is refused while triggers write to it, or with
-- cascade takes them along: users' writes go on either way.
create or replace function larder.installed(larder.change) returns boolean
  language sql immutable parallel safe as 'select true';
-- It runs with the writer's rights, and default privileges may have withheld this one.
grant execute on function larder.installed(larder.change) to public;
