-- Schema larder but for its log: what larders know of each other, and the functions. All of it may be dropped and made
-- anew, which begins a new epoch: larder does so where any of it is missing or damaged, such as by a restore.
--
-- The tables are unlogged, as the log is: no publication sends them, none needs a replica identity, and after a crash or
-- on a promoted standby they are empty together.

create schema if not exists larder;
grant usage on schema larder to public;
drop table if exists larder.horizon, larder.epoch, larder.node, larder.logger, larder.served;

-- Rows of larder.change below this transaction may have been pruned; it only moves up.
create unlogged table larder.horizon (
  one bool primary key default true check (one),
  xid xid8 not null
);

-- This life of the log. Transactions that had been prepared when it began may have logged rows that are lost; nothing
-- that was known before one of them is visible is known to be true afterwards.
create unlogged table larder.epoch (
  one      bool primary key default true check (one),
  nonce    uuid not null,
  prepared xid8[] not null
);

-- The larders that may come back to the log, and how far each has followed it. The mark is random and often renewed:
-- a larder that finds another than its own knows that the database was put back to an earlier state.
create unlogged table larder.node (
  name     uuid primary key,
  position pg_snapshot not null,
  seen_at  timestamptz not null,
  mark     uuid
);

-- The logging functions, and until when a larder that lives has said it needs each; one that none needs is removed with
-- its triggers.
create unlogged table larder.logger (
  name         text primary key,
  needed_until timestamptz not null
);

-- The definitions of resources that have fitted this database, by hash. One that does not fit any more is an accident of
-- its own, and stops no larder from starting.
create unlogged table larder.served (
  definition text primary key,
  served_at  timestamptz not null
);

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

-- What a reader sends as Larder-Token to see what the running transaction writes, once it has committed.
create or replace function larder.token() returns text
  language sql volatile security definer set search_path = pg_catalog, pg_temp
  as $$ select nonce || '.' || pg_current_xact_id() from larder.epoch $$;
grant execute on function larder.token() to public;

-- Called when a statement is planned, since it claims to be immutable: a prepared statement that names tables by oid
-- gives the same value until PostgreSQL discards its plan, because one of them changed.
create or replace function larder.plan_mark() returns uuid
  language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
  as $$ begin return gen_random_uuid(); end $$;
grant execute on function larder.plan_mark() to public;

-- Whose loggers these are, says who needs them; those of larder 0.1, which delete from the log in writers' transactions,
-- go at once.
insert into larder.logger (name, needed_until)
  select proname, case when prosrc like '%delete from larder.change%' then now() else now() + interval '1 hour' end
  from pg_proc where pronamespace = 'larder'::regnamespace and proname like 'log\_%';

-- Raised with each change of this file, so that a larder makes anew what an older one has left.
create or replace function larder.version() returns int
  language sql immutable parallel safe as 'select 2';
