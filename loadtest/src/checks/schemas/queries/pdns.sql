-- Statements of the gpgsql backend of PowerDNS.
select content, ttl, prio, type, domain_id, disabled, name, auth from records where disabled = false and type = $1 and name = $2;
select content, ttl, prio, type, name from records where disabled = false and name = $1 and domain_id = $2;
select content, type, name from records where disabled = false and domain_id = $1 order by name, type;
select content, type, name from records where disabled = false and (name = $1 or name like $2) and domain_id = $3;
select ordername from records where disabled = false and ordername ~<=~ $1 and domain_id = $2 and ordername is not null
  order by ordername using ~>~ limit 1;
select content, name from records where content like '192.0.2.%' limit $1;
select content, name from records where name like 'www.%' limit $1;
select id, name, master, last_check, type, account from domains where name = $1;
select id, name from domains where type = $1 and last_check < $2;
select m.content from domains d join domainmetadata m on m.domain_id = d.id where d.name = $1 and m.kind = $2;
select k.id, k.flags, k.content from domains d join cryptokeys k on k.domain_id = d.id where d.name = $1;
select domain_id, name, comment from comments where domain_id = $1 and name = $2 and type = $3;
select account from supermasters where ip = $1 and nameserver = $2;
update domains set last_check = $1 where id = $2;
