-- Answers to writes with an Idempotency-Key, for requests that are repeated. A row is written in the write's own
-- transaction, so that it exists if and only if the write has committed. `request` is a hash of method, path and body.
--
-- The table is logged, since it must survive a crash, so publications for all tables send it. It is created only if
-- `idempotency_keys` is set.
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
-- A pass erases the documents of a resource that are deleted. `preference` is that of the first request.
alter table larder.answer add column if not exists resource text, add column if not exists preference text;
create index if not exists answer_document on larder.answer (resource, document_key) where document is not null;
create index if not exists answer_answered_at on larder.answer (answered_at);
