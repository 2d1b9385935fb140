-- Schema larder as larder 0.1 created it (2026-11-23): the log is a logged table, the horizon a transaction number, and there is
-- no larder.version(). A trigger in the shape of its triggers writes to the log.
create schema if not exists larder;
create table if not exists larder.change (
  xid  xid8 not null default pg_current_xact_id(),
  path text not null,
  key  text
) with (vacuum_truncate = off);
create index if not exists change_xid on larder.change (xid);
create table if not exists larder.horizon (
  one bool primary key default true check (one),
  xid xid8 not null
);
insert into larder.horizon (xid) values (pg_snapshot_xmin(pg_current_snapshot())) on conflict do nothing;
create unlogged table if not exists larder.epoch (
  one   bool primary key default true check (one),
  nonce uuid not null
);
create table if not exists larder.node (
  name     uuid primary key,
  position pg_snapshot not null,
  seen_at  timestamptz not null,
  mark     uuid
);
create table if not exists larder.logger (
  name      text primary key,
  needed_at timestamptz not null
);
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
create or replace function larder.prune(retention interval default '1 hour', rows_max bigint default null)
  returns bigint language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  deleted bigint;
begin
  delete from larder.node where seen_at < now() - retention;
  update larder.horizon set xid = oldest.xid
    from (select pg_snapshot_xmin(position) as xid from larder.node
          union all select pg_snapshot_xmin(pg_current_snapshot()) order by 1 limit 1) oldest
    where oldest.xid > horizon.xid;
  delete from larder.change where ctid = any (array(
    select ctid from larder.change where xid < (select xid from larder.horizon) limit rows_max));
  get diagnostics deleted = row_count;
  return deleted;
end $$;
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
create or replace function larder.token() returns text
  language sql volatile security definer set search_path = pg_catalog, pg_temp
  as $$ select nonce || '.' || pg_current_xact_id() from larder.epoch $$;
grant execute on function larder.token() to public;
grant usage on schema larder to public;
create or replace function larder.plan_mark() returns uuid
  language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp
  as $$ begin return gen_random_uuid(); end $$;
grant execute on function larder.plan_mark() to public;

insert into larder.epoch (nonce) values (gen_random_uuid());
insert into larder.node (name, position, seen_at) values (gen_random_uuid(), pg_current_snapshot(), now());
create function larder.log_0123456789abcdef() returns trigger language plpgsql security definer as $$
begin
  insert into larder.change (path, key) select 'public.a(id)', id::text from larder_new;
  return null;
end $$;
insert into larder.logger (name, needed_at) values ('log_0123456789abcdef', now());
create trigger larder_0123456789abcdef_update after update on public.a referencing new table as larder_new
  for each statement when (null::larder.change is null) execute function larder.log_0123456789abcdef();
alter table public.a enable always trigger larder_0123456789abcdef_update;
