#!/usr/bin/env bash
# PostgreSQL 18.6, `merge … returning` (since 17). With `insert … on conflict do update`, `returning xmax = 0` tells rows that were
# inserted from those that were updated, since the latter were locked first. `merge` updates without a lock of its own, so the same
# expression calls all rows inserted; once the table has any `before update` trigger for rows, it tells them apart again.
# `merge_action()` is right in both cases.
# Guess before: the expression means the same in both statements.
# Seen: the lines below.
. "$(dirname "$0")/postgres.sh" 18.6.0

cat > schema.sql <<'END'
create table stock (id int primary key, n int);
insert into stock values (1, 0);
create function same() returns trigger language plpgsql as $$ begin return new; end $$;
END
cat > upsert.sql <<'END'
begin;
insert into stock values (1, 1), (2, 1) on conflict (id) do update set n = excluded.n
  returning id, case when xmax = 0 then 'inserted' else 'updated' end;
rollback;
END
cat > merge.sql <<'END'
begin;
merge into stock s using (values (1, 1), (2, 1)) v (id, n) on s.id = v.id
  when matched then update set n = v.n when not matched then insert values (v.id, v.n)
  returning s.id, case when s.xmax = 0 then 'inserted' else 'updated' end, merge_action();
rollback;
END
sql -f schema.sql
same "$(sql -f upsert.sql)" \
'1|updated
2|inserted'
same "$(sql -f merge.sql)" \
'1|inserted|UPDATE
2|inserted|INSERT'
sql -c 'create trigger same before update on stock for each row execute function same()'
same "$(sql -f merge.sql)" \
'1|updated|UPDATE
2|inserted|INSERT'
