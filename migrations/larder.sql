-- Schema larder except its log: the tables that nodes share, and the functions. larder drops and creates all of it if
-- something is missing or damaged, such as by a restore. A new epoch begins then.
--
-- The tables are unlogged, as the log is: publications do not send them, they need no replica identity, and after a
-- crash or on a promoted standby all of them are empty.

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

-- Rows of transactions that `snapshot` sees may be gone from larder.change: a node whose position does not see all of
-- it invalidates all its entries. Rows of transactions that `pruned` sees are gone, so pruning continues from there.
create unlogged table larder.horizon (
  one      bool primary key default true check (one),
  snapshot pg_snapshot not null,
  pruned   pg_snapshot not null default '1:1:'
);

-- The epoch of the log. Transactions that were prepared when it began may have logged rows that are lost: when one of
-- them becomes visible, all entries that were loaded before are invalid.
create unlogged table larder.epoch (
  one      bool primary key default true check (one),
  nonce    uuid not null,
  prepared xid8[] not null
);

-- The nodes that may read the log again, and the position of each. The mark is random and often renewed: a node that
-- finds another mark than its own knows that the database was put back to an earlier state. At `kept_until` the node's
-- own retention ends.
create unlogged table larder.node (
  name       uuid primary key,
  position   pg_snapshot not null,
  seen_at    timestamptz not null,
  mark       uuid,
  kept_until timestamptz not null default now()
);

-- The logging functions, and until when each is needed. One that no larder needs any more is removed with its triggers.
create unlogged table larder.logger (
  name         text primary key,
  needed_until timestamptz not null
);

-- Hashes of the definitions of resources that have fitted this database. If one of them does not fit any more, larder
-- starts all the same, without that resource.
create unlogged table larder.served (
  definition text primary key,
  served_at  timestamptz not null
);

-- Deletes at most `rows_max` rows of the log, in the order of their transactions, which all nodes have read that were
-- seen within `retention` (if it is null, within their own), and moves the horizon to what all of these nodes see.
-- Nodes call it all the time; call it by hand if none runs. Returns the number of rows deleted: 0 if another session
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

-- For rows of the log that are deleted or updated by hand. If the horizon does not see them yet, it moves to what has
-- ended by now, and in any case past them, so that no node continues from a position that needs them. Rows that are
-- pruned are seen by the horizon already. `pruned` starts again, since an update may have moved rows to where pruning
-- has been.
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

-- The Larder-Token with which a reader sees what the running transaction writes, once it has committed.
create or replace function larder.token() returns text
  language sql volatile security definer set search_path = pg_catalog, pg_temp
  as $$ select nonce || '.' || pg_current_xact_id() from larder.epoch $$;
grant execute on function larder.token() to public;

-- Called when a statement is planned, since it is declared immutable. A prepared statement that calls it and names
-- tables by oid returns the same value until PostgreSQL discards its plan, because one of the tables has changed.
create or replace function larder.plan_mark() returns uuid
  language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
  as $$ begin return gen_random_uuid(); end $$;
grant execute on function larder.plan_mark() to public;

-- What row security lets the current role see. The result has, for each table, its oid and the policies that decide
-- what the role reads, or `off` if row security does not apply. `tables` is an earlier result, of which only the oids
-- are used.
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

-- A constant of an array of this domain is checked when a statement is analysed, just before PostgreSQL writes policies
-- into it. The function is called twice, and the second result counts: what the first call has read of roles is cached
-- by then.
drop domain if exists larder.row_security_state;
create domain larder.row_security_state as text constraint larder_row_security_unchanged
  check (value = larder.row_security(value) and value = larder.row_security(value));
grant usage on domain larder.row_security_state to public;

-- Logging functions that exist already. A larder that needs one says so within the hour. Those of larder 0.1, which
-- delete from the log in writers' transactions, are removed at once.
insert into larder.logger (name, needed_until)
  select proname, case when prosrc like '%delete from larder.change%' then now() else now() + interval '1 hour' end
  from pg_proc where pronamespace = 'larder'::regnamespace and proname like 'log\_%';

-- Functions of this schema run with the rights of their owners, which may be other roles than the one that runs this.
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

-- The number is raised with each change of what this file creates, so that larder creates again what an older version
-- has left.
create or replace function larder.version() returns int
  language sql immutable parallel safe as 'select 3';
