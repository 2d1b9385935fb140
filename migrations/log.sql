-- The log of schema larder: rows that changed, not yet documents. Written by the triggers of larder_* on the configured
-- tables, inside the writer's transaction. xid is the top-level transaction; key is canonical text, null for every row
-- of the path.
--
-- Run where the log is missing, or not as it should be; a new epoch begins with it. Where it is there, its writers are
-- kept out meanwhile.
--
-- Truncation by vacuum would lock out the writers; no unique index, for the same reason.
create unlogged table if not exists larder.change (
  xid  xid8 not null default pg_current_xact_id(),
  path text not null,
  key  text
) with (vacuum_truncate = off);
truncate larder.change;
-- larder 0.1 had it logged.
alter table larder.change set unlogged;
drop index if exists larder.change_xid;
create index change_xid on larder.change (xid);
create or replace trigger larder_guard_delete after delete on larder.change
  referencing old table as larder_old for each statement execute function larder.guard_log();
create or replace trigger larder_guard_update after update on larder.change
  referencing old table as larder_old for each statement execute function larder.guard_log();
alter table larder.change enable always trigger larder_guard_delete;
alter table larder.change enable always trigger larder_guard_update;

-- Functions of this schema run with the rights of their owners, who may be others than whoever runs this.
do $$
declare
  owner name;
begin
  for owner in select rolname from pg_roles where rolname <> current_user and oid in (
      select proowner from pg_proc where pronamespace = 'larder'::regnamespace
      union select nspowner from pg_namespace where nspname = 'larder') loop
    execute format('grant select, insert, update, delete on larder.change to %I', owner);
  end loop;
end $$;
