-- The tables that larder shows itself on: a private PostgreSQL is empty, and a cache of nothing
-- can't be tried. Run by `larder seed`, and by `larder serve` in its private database only;
-- never in a database that somebody configured without asking for it.
-- Qualified, since for a role named larder an unqualified name would land in schema larder.
create table if not exists public.dept (
  deptno bigint primary key,
  dname  text not null,
  loc    text
);

create table if not exists public.emp (
  empno    bigint primary key,
  ename    text,
  job      text,
  mgr      bigint,
  hiredate timestamp,
  sal      bigint,
  comm     bigint,
  deptno   bigint references public.dept on delete cascade
);

-- A document's children are read by it, and a dept's deletion cascades by it.
create index if not exists emp_deptno on public.emp (deptno);
