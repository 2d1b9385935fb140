-- Statements such as those of Tiny Tiny RSS.
select id, title from ttrss_entries where guid = $1;
select e.id, e.title, u.unread from ttrss_entries e join ttrss_user_entries u on u.ref_id = e.id
  where u.owner_uid = $1 and u.feed_id = $2 order by e.date_entered desc, e.updated desc limit 30;
select count(*) from ttrss_user_entries where owner_uid = $1 and unread = true;
select int_id from ttrss_user_entries where owner_uid = $1 and last_read > $2;
select e.id from ttrss_entries e where e.date_updated > $1 order by e.date_updated;
select e.id from ttrss_entries e where e.tsvector_combined @@ websearch_to_tsquery('english', $1);
select id, title from ttrss_entries where title like 'Release%';
select f.id, f.feed_url from ttrss_feeds f join ttrss_users u on u.id = f.owner_uid
  where f.last_updated < $1 and f.update_interval >= 0 order by f.last_updated limit 100;
select tag_name, count(*) from ttrss_tags where owner_uid = $1 and tag_name = $2 group by tag_name;
select value from ttrss_user_prefs where pref_name = $1 and owner_uid = $2 and profile = $3;
select id from ttrss_feed_categories where owner_uid = $1 and title = $2;
select id, login from ttrss_users where lower(login) = lower($1);
delete from ttrss_sessions where expire < $1;
select id, errstr from ttrss_error_log where errno = $1 and created_at > $2;
