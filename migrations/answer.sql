-- What was answered to writes with an Idempotency-Key, for whoever repeats the request. A row is written in the write's
-- own transaction, so that the one is there if and only if the other is; `request` is a hash of method, path and body.
--
-- It outlives a crash, so publications for all tables send it: it is here only where `idempotency_keys` is set.
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
