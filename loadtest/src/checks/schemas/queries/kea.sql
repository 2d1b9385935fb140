-- Statements such as those of Kea's lease, host and configuration backends.
select address, hwaddr, expire from lease4 where hwaddr = $1 and subnet_id = $2;
select address, client_id, expire from lease4 where client_id = $1;
select address, hostname from lease4 where lower(hostname) = $1;
select address, expire from lease4 where state = $1 and expire < $2 order by expire limit $3;
select address from lease4 where subnet_id = $1 and address > $2 order by address limit $3;
delete from lease6 where state = $1 and expire < $2;
select address, duid from lease6 where duid = $1 and iaid = $2 and lease_type = $3;
select address from lease6 where hwaddr = $1;
select h.host_id, h.hostname, o.code, o.value from hosts h left join dhcp4_options o on o.host_id = h.host_id
  where h.dhcp_identifier = $1 and h.dhcp_identifier_type = $2 order by h.host_id, o.option_id;
select h.host_id, r.address from hosts h left join ipv6_reservations r on r.host_id = h.host_id where h.dhcp6_subnet_id = $1;
select s.subnet_id, p.start_address from dhcp4_subnet s join dhcp4_pool p on p.subnet_id = s.subnet_id where s.modification_ts > $1;
select a.object_type, a.object_id from dhcp4_audit a join dhcp4_audit_revision r on r.id = a.revision_id
  where r.modification_ts > $1 order by a.id;
select log from logs where address = $1 order by timestamp desc limit 10;
