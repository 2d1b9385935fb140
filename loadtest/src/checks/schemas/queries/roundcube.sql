-- Statements such as those of Roundcube.
select * from users where username = $1 and mail_host = $2;
delete from session where changed < $1;
select data from cache where user_id = $1 and cache_key = $2;
delete from cache_messages where expires < $1;
select contact_id, name, email from contacts where user_id = $1 and del = 0 order by name, contact_id limit 50 offset $2;
select contact_id from contacts where user_id = $1 and del = 0 and email = $2;
select contact_id, name from contacts where surname like 'Mc%' and user_id = $1;
select contact_id from contacts where words ilike '%smith%' and user_id = $1;
select c.contact_id, c.email from contactgroupmembers m join contacts c on c.contact_id = m.contact_id
  where m.contactgroup_id = $1 and c.del = 0;
select g.contactgroup_id, g.name from contactgroups g where g.user_id = $1 and g.name = $2 and g.del = 0;
select identity_id, email from identities where user_id = $1 and del = 0 order by standard desc, name;
select address_id, email from collected_addresses where type = $1 and email = $2;
select file_id, data from filestore where context = $1 and filename = $2;
select user_id, username from users where last_login < $1 order by last_login;
