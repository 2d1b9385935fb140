-- A schema with what makes keys, links and renderings difficult. The tables that a document reads are indexed by the
-- columns that lead to them.
create schema "Sales";
set search_path = "Sales";

create type mood as enum ('calm', 'a "loud", é one');
create type address as (street text, "No" integer, ok boolean);
create domain stamp as timestamp;
create domain blob as bytea;
create domain amount as numeric check (value is null or value <> 13);
create domain raw as json;

create table country (code char(5) primary key, title varchar(40), continent text);
create table region (
  id smallint primary key, title text not null,
  country char(5) references country on update cascade on delete set null);
create index on region (country);
create table author (id bigint primary key, name text, born date);
create table product (
  id uuid primary key, title text, price numeric(20, 6),
  parent uuid references product on delete set null);
create index on product (parent);

create table "Orders" (
  "orderNo" integer, "Branch" text, title text, ref varchar(12) unique,
  region_id smallint references region on update cascade on delete set null,
  up_no integer, "up,Branch" text,
  primary key ("orderNo", "Branch"),
  foreign key (up_no, "up,Branch") references "Orders" on update cascade on delete set null);
create index on "Orders" (region_id);
create index on "Orders" (up_no, "up,Branch");
-- The foreign key names the columns in another order than the key does.
create table "Line" (
  id bigint primary key, qty integer, product_id uuid references product on delete set null,
  "inBranch" text not null, "inOrder" integer not null,
  foreign key ("inBranch", "inOrder") references "Orders" ("Branch", "orderNo") on update cascade on delete cascade);
create index on "Line" ("inOrder", "inBranch");
create index on "Line" (product_id);
create table note (
  id integer primary key, body text, author bigint references author on delete set null,
  line_id bigint references "Line" on update cascade on delete cascade);
create index on note (line_id);
create index on note (author);
create table tag (
  note_id integer references note on update cascade on delete cascade, tag text, weight real,
  primary key (note_id, tag));
create table shipment (
  id integer primary key, order_ref varchar(12) references "Orders" (ref) on update cascade on delete cascade,
  sent timestamptz);
create index on shipment (order_ref);

create table account (no numeric(30, 0) primary key, owner text);
create table entry (
  id serial primary key, account numeric(30, 0) references account on update cascade on delete cascade, sum numeric);
create index on entry (account);
create table person (name varchar(60) primary key, visits bigint default 0, friend varchar(60) references person on update cascade);
create index on person (friend);
create table day (day date primary key, holiday boolean);
create table event (id integer primary key, day date references day on update cascade on delete cascade, at time);
create index on event (day);

create table meter (zone text, id integer, label text, primary key (zone, id)) partition by list (zone);
create table meter_n partition of meter for values in ('north', 'n,w');
create table meter_s partition of meter for values in ('south');
create table sample (
  id bigint, day date, zone text, meter integer, value numeric,
  primary key (id, day),
  foreign key (zone, meter) references meter on update cascade on delete cascade) partition by range (day);
create index on sample (zone, meter);
create table sample_a partition of sample for values from ('2024-01-01') to ('2025-01-01') partition by range (day);
create table sample_a1 partition of sample_a for values from ('2024-01-01') to ('2024-07-01');
create table sample_a2 partition of sample_a for values from ('2024-07-01') to ('2025-01-01');
create table sample_b partition of sample for values from ('2025-01-01') to ('2026-01-01');

create table garage (id integer primary key, name text);
create table vehicle (id integer primary key, garage_id integer, name text);
create index on vehicle (garage_id);
create table car (doors integer, primary key (id)) inherits (vehicle);
create index on car (garage_id);

create table kind (
  id integer primary key,
  i2 smallint, i8 bigint, n numeric, n4 numeric(12, 4), f4 real, f8 double precision, b boolean,
  t text, v varchar(20), c char(5), bin bytea,
  d date, tm time, tmz timetz, ts timestamp, tsz timestamptz, iv interval, u uuid,
  j json, jb jsonb, e mood, dts stamp, dbin blob, dnum amount, dj raw,
  ai integer[], at text[], ats timestamp[], atsz timestamptz[], abin bytea[], an numeric[], ab boolean[], aj jsonb[],
  adts stamp[], adbin blob[], ae mood[],
  place address, places address[], r int4range, tr tstzrange, ip inet, "odd ""name"", é" text);
