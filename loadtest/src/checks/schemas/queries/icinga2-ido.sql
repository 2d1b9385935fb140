-- Statements such as those of Icinga 2 and Icinga Web.
select object_id from icinga_objects where objecttype_id = $1 and name1 = $2 and name2 = $3;
select o.name1, s.current_state from icinga_hoststatus s join icinga_objects o on o.object_id = s.host_object_id
  where o.is_active = 1 and o.objecttype_id = 1 and s.current_state > 0 order by s.last_state_change desc limit 50;
select h.host_id, h.address from icinga_hosts h join icinga_objects o on o.object_id = h.host_object_id where o.name1 = $1;
select h.host_object_id from icinga_hosts h where h.address = $1;
select state_time, state, output from icinga_statehistory where object_id = $1 and state_time > $2 order by state_time desc limit 100;
select state_time, object_id from icinga_statehistory where state_time between $1 and $2;
select n.start_time, n.output from icinga_notifications n where n.object_id = $1 order by n.start_time desc limit 25;
select n.notification_id from icinga_notifications n where n.start_time > $1 and n.state = $2;
select varvalue from icinga_customvariables where object_id = $1 and varname = $2;
select object_id from icinga_customvariables where varname = $1 and varvalue like 'linux%';
delete from icinga_statehistory where instance_id = $1 and state_time < $2;
delete from icinga_logentries where instance_id = $1 and logentry_time < $2;
select d.downtimehistory_id from icinga_downtimehistory d where d.instance_id = $1 and d.entry_time < $2;
update icinga_hoststatus set output = $1, current_state = $2 where host_object_id = $3;
select g.alias from icinga_hostgroups g join icinga_hostgroup_members m on m.hostgroup_id = g.hostgroup_id where m.host_object_id = $1;
