-- The change log: keys of rows that changed, which a pass maps to documents. The triggers larder_* on the configured
-- tables write it, inside the writer's transaction. xid is the top-level transaction; path names table and columns; key
-- is canonical text or a range of keys, null for all keys of the path.
--
-- Run if the log is missing or damaged. A new epoch begins then. If the table exists, writers wait meanwhile.
--
-- vacuum_truncate is off, since truncation by vacuum would lock out writers. There is no unique index, since inserts of
-- the same key would wait for each other.
create unlogged table if not exists larder.change (
  xid  xid8 not null default pg_current_xact_id(),
  path text not null,
  key  text
) with (vacuum_truncate = off);
truncate larder.change;
-- larder 0.1 created it as a logged table.
alter table larder.change set unlogged;
drop index if exists larder.change_xid;
create index change_xid on larder.change (xid);
create or replace trigger larder_guard_delete after delete on larder.change
  referencing old table as larder_old for each statement execute function larder.guard_log();
create or replace trigger larder_guard_update after update on larder.change
  referencing old table as larder_old for each statement execute function larder.guard_log();
alter table larder.change enable always trigger larder_guard_delete;
alter table larder.change enable always trigger larder_guard_update;

-- Functions of this schema run with the rights of their owners, which may be other roles than the one that runs this.
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
