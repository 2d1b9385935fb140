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

-- The larders that may come back to the log, and how far each has followed it. The mark is random and often renewed:
-- a larder that finds another than its own knows that the database was put back to an earlier state.
create table if not exists larder.node (
  name     uuid primary key,
  position pg_snapshot not null,
  seen_at  timestamptz not null,
  mark     uuid
);
alter table larder.node add column if not exists mark uuid;

-- The logging functions, and when a larder last needed each; one that none has needed for long is removed with its
-- triggers.
create table if not exists larder.logger (
  name      text primary key,
  needed_at timestamptz not null
);

-- What was answered to writes with an Idempotency-Key, for whoever repeats the request. A row is written in the write's
-- own transaction, so that the one is there if and only if the other is; `request` is a hash of method, path and body.
create table if not exists larder.answer (
  principal    text not null,
  key          text not null,
  request      bytea not null,
  outcome      text,
  document_key text,
  document     text,
  token        text,
  answered_at  timestamptz not null default now(),
  primary key (principal, key)
);
create index if not exists answer_answered_at on larder.answer (answered_at);

-- Moves the horizon up to the oldest position of the larders seen within `retention`, or to now where there is none,
-- and deletes what is below it from the log, at most `rows_max` rows. Larders do so all the time; by hand it is of use
-- while none runs. Returns the number of rows deleted.
create or replace function larder.prune(retention interval default '1 hour', rows_max bigint default null)
  returns bigint language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  deleted bigint;
begin
  delete from larder.node where seen_at < now() - retention;
  -- Where two prune at the same time, one waits for the horizon's row.
  update larder.horizon set xid = oldest.xid
    from (select pg_snapshot_xmin(position) as xid from larder.node
          union all select pg_snapshot_xmin(pg_current_snapshot()) order by 1 limit 1) oldest
    where oldest.xid > horizon.xid;
  delete from larder.change where ctid = any (array(
    select ctid from larder.change where xid < (select xid from larder.horizon) limit rows_max));
  get diagnostics deleted = row_count;
  return deleted;
end $$;

-- Loggers of larder 0.1 deleted from the log in writers' transactions, which would move the horizon and wait for it.
do $$
declare
  logger record;
begin
  for logger in select oid::regprocedure as name from pg_proc where pronamespace = 'larder'::regnamespace
      and proname like 'log\_%' and prosrc like '%delete from larder.change%' loop
    execute format('drop function %s cascade', logger.name);
  end loop;
end $$;

-- Rows of the log that are deleted or changed by hand say nothing any more: the horizon moves past those that it does
-- not cover yet, so that no larder goes on from a position that needs them. What is pruned lies below it already.
create or replace function larder.guard_log() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  newest xid8;
begin
  select xid into newest from larder_old where xid >= (select xid from larder.horizon) order by xid desc limit 1;
  if found then
    update larder.horizon set xid = (newest::text::numeric + 1)::text::xid8 where xid <= newest;
  end if;
  return null;
end $$;
revoke all on function larder.guard_log() from public;
create or replace trigger larder_guard_delete after delete on larder.change
  referencing old table as larder_old for each statement execute function larder.guard_log();
create or replace trigger larder_guard_update after update on larder.change
  referencing old table as larder_old for each statement execute function larder.guard_log();
alter table larder.change enable always trigger larder_guard_delete;
alter table larder.change enable always trigger larder_guard_update;

-- What a reader sends as Larder-Token to see what the running transaction writes, once it has committed.
create or replace function larder.token() returns text
  language sql volatile security definer set search_path = pg_catalog, pg_temp
  as $$ select nonce || '.' || pg_current_xact_id() from larder.epoch $$;
grant execute on function larder.token() to public;
grant usage on schema larder to public;

-- Called when a statement is planned, since it claims to be immutable: a prepared statement that names tables by oid
-- gives the same value until PostgreSQL discards its plan, because one of them changed.
create or replace function larder.plan_mark() returns uuid
  language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
  as $$ begin return gen_random_uuid(); end $$;
grant execute on function larder.plan_mark() to public;
