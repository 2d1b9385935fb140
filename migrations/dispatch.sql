-- What `larder dispatch` has to remember. These tables are logged, since they must survive a crash, so publications for
-- all tables send them. They are created only if `[[dispatch]]` is configured.
create schema if not exists larder;
-- Attempts that failed. A row counts only while `due` is that of the table's row: otherwise the application has set the
-- due moment since. Moments are texts as PostgreSQL writes them in UTC.
create table if not exists larder.delivery (
  dispatch  text not null,
  key       text not null,
  due       text not null,
  first_due text not null,
  attempts  int4 not null,
  error     text not null,
  failed_at timestamptz not null default now(),
  primary key (dispatch, key)
);
-- Rows that no attempt is left for, as they were sent last. A stuck one refuses a new due moment: its row has still `due`,
-- and is left out until that changes.
create table if not exists larder.dead_letter (
  dispatch text not null,
  id       text not null,
  key      text not null,
  due      text not null,
  element  text not null,
  attempts int4 not null,
  error    text not null,
  is_stuck boolean not null default false,
  dead_at  timestamptz not null default now(),
  primary key (dispatch, id)
);
create index if not exists dead_letter_stuck on larder.dead_letter (dispatch, due) where is_stuck;
-- What operators have set for all processes.
create table if not exists larder.dispatch (
  name      text not null primary key,
  is_paused boolean not null
);
