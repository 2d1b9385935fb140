-- The forms of triggers that decision 1 compares. Run in a throwaway database; then update the tables by turns, e.g.
--   begin; update none set sal = sal + 1; rollback;          (100,000 rows, vacuum after each turn)
--   pgbench -n -M prepared -f - <<< '\set id random(1, 100000)\nupdate none set sal = sal + 1 where id = :id'
-- and compare the processor time of the server process (/proc/PID/stat, fields 14 and 15).
create schema measured;
create table measured.change (xid xid8 not null default pg_current_xact_id(), path text not null, key text);
create index on measured.change (xid);
do $$ declare t text; begin
  foreach t in array array['none', 'by_statement', 'by_row', 'empty'] loop
    execute format('create table %I (id int primary key, dept int, sal int, name text) with (fillfactor = 80)', t);
    execute format('insert into %I select i, i / 10, i, md5(i::text) from generate_series(1, 100000) i', t);
  end loop;
end $$;

create function measured.empty() returns trigger language plpgsql security definer as $$ begin return null; end $$;
create trigger empty after update on empty for each row execute function measured.empty();

create function measured.by_statement() returns trigger language plpgsql security definer as $$
declare logged bigint;
begin
  insert into measured.change (path, key)
    select distinct 'dept', r.dept::text from (select null::text as dept) gone,
      lateral (select dept from larder_old union all select dept from larder_new) r where r.dept is not null limit 10001;
  get diagnostics logged = row_count;
  if logged > 10000 then insert into measured.change (path, key) values ('dept', null); end if;
  return null;
end $$;
create trigger by_statement after update on by_statement
  referencing old table as larder_old new table as larder_new for each statement execute function measured.by_statement();

create function measured.by_row() returns trigger language plpgsql security definer as $$
declare
  setting text := current_setting('larder.measured', true);
  new_key text;
  old_key text;
  logged bigint := 0;
begin
  if setting = 'all' then return null; end if;
  begin
    new_key := new.dept::text;
    old_key := old.dept::text;
  exception when undefined_column then return null;
  end;
  if old_key = new_key then old_key := null; end if;
  if setting <> '' then
    logged := left(setting, 10);
    if old_key is null and substr(setting, 11) = new_key then return null; end if;
  end if;
  if old_key is not null then insert into measured.change (path, key) values ('dept', old_key); logged := logged + 1; end if;
  if new_key is not null then insert into measured.change (path, key) values ('dept', new_key); logged := logged + 1; end if;
  if logged > 10000 then
    insert into measured.change (path, key) values ('dept', null);
    perform set_config('larder.measured', 'all', true);
  else
    perform set_config('larder.measured', lpad(logged::text, 10, '0') || coalesce(new_key, old_key), true);
  end if;
  return null;
end $$;
create trigger by_row after update on by_row for each row execute function measured.by_row();
vacuum analyze;
