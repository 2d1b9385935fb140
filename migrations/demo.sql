-- The tables of the demo, since a private PostgreSQL is empty. Run by `larder seed`, and by `larder serve` only in its
-- private PostgreSQL, never in a configured database.
-- Names are qualified: for a role named larder, an unqualified name would be created in schema larder.
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

-- Used to read the children of a document, and by the cascade when a dept is deleted.
create index if not exists emp_deptno on public.emp (deptno);
