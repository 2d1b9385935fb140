-- Statements such as those of Zabbix.
select itemid, value, clock from history where itemid = $1 and clock > $2 order by clock desc, ns desc limit 10;
select avg(value_avg), min(clock) from trends where itemid = $1 and clock between $2 and $3;
select i.itemid, i.key_, h.host from items i join hosts h on h.hostid = i.hostid where h.status = 0 and i.status = 0;
select i.itemid from items i where i.hostid = $1 and i.flags = $2;
select i.itemid, i.name from items i join hosts h on h.hostid = i.hostid where h.host = $1 and i.key_ = $2;
select hostid, name from hosts where name_upper like 'WEB%';
select eventid, clock, value from events where source = 0 and object = 0 and objectid = $1 order by clock desc, eventid desc limit 20;
select eventid from events where clock < $1 and source = $2;
select p.eventid, p.name from problem p where p.r_eventid is null and p.severity >= $1 order by p.eventid desc;
select p.eventid, t.tag from problem p join problem_tag t on t.eventid = p.eventid where t.tag = $1 and t.value = $2;
select distinct t.triggerid, t.description from triggers t join functions f on f.triggerid = t.triggerid where f.itemid = $1;
select auditid, details from auditlog where clock between $1 and $2 order by clock desc;
select auditid from auditlog where recordsetid = $1;
select auditid from auditlog where username = $1 and clock > $2;
select a.message from acknowledges a where a.eventid = $1 order by a.clock;
select userid, lastaccess from sessions where status = $1 and lastaccess < $2;
delete from history_uint where clock < $1;
