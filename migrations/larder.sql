-- Schema larder but for its log: what larders know of each other, and the functions. All of it may be dropped and made
-- anew, which begins a new epoch: larder does so where any of it is missing or damaged, such as by a restore.
--
-- The tables are unlogged, as the log is: no publication sends them, none needs a replica identity, and after a crash or
-- on a promoted standby they are empty together.

create schema if not exists larder;
grant usage on schema larder to public;
drop table if exists larder.horizon, larder.epoch, larder.node, larder.logger, larder.served;

-- The snapshot that sees every transaction below `xmax` which is not `unfinished`.
create or replace function larder.snapshot(xmax xid8, unfinished xid8[]) returns pg_snapshot
  language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format('%s:%s:%s', coalesce((array_agg(xid order by xid))[1], xmax), xmax, string_agg(xid::text, ',' order by xid))
    ::pg_snapshot
  from (select distinct xid from unnest(unfinished) xid where xid < xmax) below
$$;

-- What the horizon sees may be gone from larder.change: a larder whose position does not see all of it begins anew.
-- What `pruned` sees is gone, so that pruning goes on from there.
create unlogged table larder.horizon (
  one      bool primary key default true check (one),
  snapshot pg_snapshot not null,
  pruned   pg_snapshot not null default '1:1:'
);

-- This life of the log. Transactions that had been prepared when it began may have logged rows that are lost; nothing
-- that was known before one of them is visible is known to be true afterwards.
create unlogged table larder.epoch (
  one      bool primary key default true check (one),
  nonce    uuid not null,
  prepared xid8[] not null
);

-- The larders that may come back to the log, and how far each has followed it. The mark is random and often renewed:
-- a larder that finds another than its own knows that the database was put back to an earlier state. `kept_until` is
-- when its own retention ends.
create unlogged table larder.node (
  name       uuid primary key,
  position   pg_snapshot not null,
  seen_at    timestamptz not null,
  mark       uuid,
  kept_until timestamptz not null default now()
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

-- Deletes at most `rows_max` rows of the log, in the order of their transactions, that every larder has read which was
-- seen within `retention`, or where that is null within its own; and moves the horizon up to what all of these see.
-- Larders do so all the time; by hand it is of use while none runs. Returns the number of rows deleted: 0 where another
-- prunes at the same moment.
create or replace function larder.prune(retention interval default '1 hour', rows_max bigint default null)
  returns bigint language plpgsql
  set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  horizon_was pg_snapshot;
  pruned_was  pg_snapshot;
  common      pg_snapshot;
  batch       tid[];
  reached     xid8;
  deleted     bigint;
begin
  delete from larder.node where coalesce(seen_at + retention, kept_until) < now();
  select snapshot, pruned into horizon_was, pruned_was from larder.horizon;
  -- A larder whose position does not see all of the horizon has to begin anew, and needs nothing of the log. The running
  -- transaction has not ended, though its own snapshot does not say so.
  with known as (
    select position from larder.node
      where pg_snapshot_xmax(horizon_was) <= pg_snapshot_xmax(position)
        and not exists (select from pg_snapshot_xip(position) xid where pg_visible_in_snapshot(xid, horizon_was))
    union all select pg_current_snapshot())
  select larder.snapshot(
      (select pg_snapshot_xmax(position) from known order by 1 limit 1),
      array(select pg_snapshot_xip(position) from known) || pg_current_xact_id_if_assigned())
    into common;
  -- Those that were unfinished when their neighbours' rows were deleted, each by itself, then what lies behind.
  select array_agg(ctid), max(xid::text::numeric)::text::xid8 into batch, reached from (
    select c.ctid, c.xid
      from (select xid as low, xid as high from pg_snapshot_xip(pruned_was) xid where pg_visible_in_snapshot(xid, common)
            union all select pg_snapshot_xmax(pruned_was), pg_snapshot_xmax(common)) span,
        lateral (select ctid, xid from larder.change
          where xid >= low and xid <= high and pg_visible_in_snapshot(xid, common) order by xid limit rows_max) c
      order by c.xid limit rows_max) rows;
  if batch is null then
    return 0;
  end if;
  perform from larder.horizon
    where snapshot::text = horizon_was::text and pruned::text = pruned_was::text for update skip locked;
  if not found then
    return 0;
  end if;
  -- The last one of a full batch may have more rows.
  if cardinality(batch) is distinct from rows_max then
    reached := pg_snapshot_xmax(common);
  end if;
  update larder.horizon set snapshot = common, pruned = larder.snapshot(
    greatest(pg_snapshot_xmax(pruned), reached),
    array(select xid from (select pg_snapshot_xip(pruned) union all select pg_snapshot_xip(common)) unfinished (xid)
      where not pg_visible_in_snapshot(xid, pruned) and not (xid < reached and pg_visible_in_snapshot(xid, common))));
  delete from larder.change where ctid = any (batch) and pg_visible_in_snapshot(xid, common);
  get diagnostics deleted = row_count;
  return deleted;
end $$;

-- Rows of the log that are deleted or changed by hand say nothing any more: if the horizon does not see them yet, it
-- moves up to what has ended by now and, in any case, past them, so that no larder goes on from a position that needs
-- them. What is pruned it sees already. What is left may have been moved to where pruning has been.
create or replace function larder.guard_log() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  was pg_snapshot;
begin
  perform from larder_old, larder.horizon where not pg_visible_in_snapshot(xid, snapshot) limit 1;
  if not found then
    return null;
  end if;
  select snapshot into was from larder.horizon for update;
  update larder.horizon set pruned = default, snapshot = larder.snapshot(
    (select greatest(pg_snapshot_xmax(was), pg_snapshot_xmax(pg_current_snapshot()), (xid::text::numeric + 1)::text::xid8)
      from larder_old order by xid desc limit 1),
    array(select xid
      from (select pg_snapshot_xip(was) union all select pg_snapshot_xip(pg_current_snapshot())) unfinished (xid)
      where not pg_visible_in_snapshot(xid, was) and not pg_visible_in_snapshot(xid, pg_current_snapshot())
        and xid <> pg_current_xact_id()));
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

-- What row security lets the current role see of `tables`, which are given as its own result has them: by oid, each with
-- the policies that decide what it reads, unless row security does not concern it.
create or replace function larder.row_security(tables text) returns text
  language plpgsql volatile set search_path = pg_catalog, pg_temp
  as $$ begin
    return (select string_agg(concat_ws(' ', c.oid, case when not row_security_active(c.oid) then 'off' else concat_ws(' ', 'on', (
        select string_agg(p.oid::text, ' ' order by p.oid) from pg_policy p
        where p.polrelid = c.oid and p.polcmd in ('r', '*') and exists (select from unnest(p.polroles) r (oid)
          where case when r.oid = 0 then true else pg_has_role(r.oid, 'usage') end))) end), ', ' order by c.oid)
      from (select substring(part from '^\d+')::oid as oid from unnest(string_to_array(tables, ', ')) part) c);
  end $$;
grant execute on function larder.row_security(text) to public;

-- A constant of an array of these is checked when a statement is analysed, just before policies are written into it. The
-- second look is the one that counts: what the first had read of roles is remembered then.
drop domain if exists larder.row_security_state;
create domain larder.row_security_state as text constraint larder_row_security_unchanged
  check (value = larder.row_security(value) and value = larder.row_security(value));
grant usage on domain larder.row_security_state to public;

-- Whose loggers these are, says who needs them; those of larder 0.1, which delete from the log in writers' transactions,
-- go at once.
insert into larder.logger (name, needed_until)
  select proname, case when prosrc like '%delete from larder.change%' then now() else now() + interval '1 hour' end
  from pg_proc where pronamespace = 'larder'::regnamespace and proname like 'log\_%';

-- Functions of this schema run with the rights of their owners, who may be others than whoever runs this.
do $$
declare
  owner name;
begin
  for owner in select rolname from pg_roles where rolname <> current_user and oid in (
      select proowner from pg_proc where pronamespace = 'larder'::regnamespace
      union select nspowner from pg_namespace where nspname = 'larder') loop
    execute format('grant select, insert, update, delete on larder.horizon, larder.epoch, larder.node, larder.logger, larder.served to %I', owner);
  end loop;
end $$;

-- Raised with each change of this file, so that a larder makes anew what an older one has left.
create or replace function larder.version() returns int
  language sql immutable parallel safe as 'select 3';
