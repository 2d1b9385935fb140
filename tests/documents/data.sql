set search_path = "Sales";
insert into country values ('NO', 'Norway', 'Europe'), ('a,b', 'Comma', null), ('50%', 'Half', 'Nowhere');
insert into region values (1, 'North', 'NO'), (2, 'South', 'a,b'), (3, 'Lost', null), (-4, 'Empty', 'NO');
insert into author values (1, 'Ada', '1815-12-10'), (9223372036854775807, 'Max', null), (3, 'Cid', '0044-03-15 BC');
insert into product values
  ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'Box', 1.5, null),
  ('b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'Small box', 1234567890.000001, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'),
  ('c0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'Self', null, 'c0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
insert into "Orders" values
  (1, 'a,b', 'comma', 'R1', 1, null, null), (1, '50%', 'per cent', 'R2', 1, 1, 'a,b'),
  (2, 'é "q" ''s'' \', 'quotes', 'R3', 2, 1, 'a,b'), (3, '%2C', 'encoded', null, null, 3, '%2C'),
  (3, '', 'empty', 'R,5', 3, null, null), (-7, 'plain', null, 'R6', 2, 1, '50%'), (8, 'x/y?z#&', 'path', 'R7', 2, null, null);
insert into "Line" values
  (1, 10, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'a,b', 1), (2, 20, 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'a,b', 1),
  (3, 30, null, '50%', 1), (4, 40, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'é "q" ''s'' \', 2),
  (5, null, 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'plain', -7), (6, 60, null, '%2C', 3);
insert into note values
  (1, 'first', 1, 1), (2, 'second', 3, 1), (3, 'on two', null, 2), (4, 'on four', 1, 4), (5, 'adrift', 1, null);
insert into tag values (1, 'red', 0.5), (1, 'blue', 'NaN'), (2, 'red', 1e10), (4, 'green', '-Infinity');
insert into shipment values (1, 'R1', '2024-05-06 07:08:09+02'), (2, 'R1', null), (3, 'R2', 'infinity'), (4, 'R,5', 'epoch');
insert into account values (123456789012345678901234567890, 'long'), (0, null), (-5, 'minus');
insert into entry (account, sum) values (123456789012345678901234567890, 0.10), (-5, 1e40), (-5, 'NaN');
insert into person values ('sentinel', 0, null), ('Ann', 1, null), ('a,b%2C c', 2, 'Ann'), ('é', 3, 'Ann');
insert into day values ('2024-02-29', true), ('infinity', null), ('0044-03-15 BC', false), ('10000-01-01', true);
insert into event values (1, '2024-02-29', '12:00'), (2, '2024-02-29', null), (3, '0044-03-15 BC', '24:00');
insert into meter values ('north', 1, 'n1'), ('n,w', 1, 'nw1'), ('south', 1, 's1'), ('south', 2, null);
insert into sample values
  (1, '2024-02-01', 'north', 1, 1.10), (2, '2024-08-01', 'north', 1, 2), (3, '2025-03-01', 'north', 1, null),
  (4, '2024-02-02', 'n,w', 1, 4), (5, '2025-02-02', 'south', 1, 5);
insert into garage values (1, 'one'), (2, 'two');
insert into vehicle values (1, 1, 'bike'), (2, 2, 'cart');
insert into car values (10, 1, 'mini', 2), (11, 2, 'van', 5);

insert into kind (id) values (0);
insert into kind values (1,
  -32768, 9223372036854775807, 123456789012345678901234567890.123456789012345678901234567890000, 1.5, 1.1, 0.1, true,
  E'\x01\x02\b\t\n\f\r\x1b\x1f"\\/ \x7f é 漢 😀 \u2028 </script>', 'v', 'ab', decode(repeat('00ff10', 70), 'hex'),
  '2024-02-29', '03:04:05.678', '03:04:05.6+05:30', '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05+05',
  '1 year 2 mons -3 days 04:05:06.7', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11',
  E' { "b" : 1.10 , "a":[ 1 ,2 ], "b": null,\n "u":"\\u0041" } ', ' { "b" : 1.10 , "a":[ 1 ,2 ] } ', 'a "loud", é one',
  '2024-01-02 03:04:05', '\x00', 1.10, ' [ 1 ] ',
  '{{1,2},{3,null}}', array['a', null, 'NULL', '', 'x"y\z{},', ' s '], '{2024-01-02 03:04:05,null,infinity}',
  '{2024-01-02 03:04:05+02,-infinity}', array['\x01'::bytea, null, '', decode(repeat('ab', 100), 'hex')],
  '{1.10,NaN,1e30}', '{t,f,null}', array['{"a": [1]}'::jsonb, 'null', null],
  '{2024-01-02 03:04:05,null}', array['\xff'::bytea]::blob[], '{calm,"a \"loud\", é one"}',
  row('Main "St", (x)\', 5, true), array[row('', null, false), null]::address[], '[1,5)',
  '[2024-01-01 00:00+02,)', '192.168.1.1', 'odd');
insert into kind values (2,
  0, 0, 'NaN', -0.0001, 'NaN', 'NaN', false, '', '', '', '', 'infinity', '24:00', '00:00-12', 'infinity', 'infinity',
  '0', '00000000-0000-0000-0000-000000000000', 'null', 'null', 'calm', 'infinity', '', 'NaN', '"x"',
  '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', row(null, null, null), '{}', 'empty', 'empty', '10.0.0.0/8', '');
insert into kind values (3,
  1, -9223372036854775808, 'Infinity', 99999999.9999, '-Infinity', 'Infinity', null, repeat('é', 3000), null, 'é',
  decode(repeat('61', 57), 'hex'), '-infinity', null, null, '0044-03-15 12:00 BC', '0044-03-15 12:00+00 BC', '-1 days',
  null, '1e400', '1e40', null, '0044-03-15 12:00 BC', decode(repeat('62', 58), 'hex'), '-Infinity', '{"z":1,"a":2}',
  '[0:1]={1,2}', '{{a,b},{c,d}}', '{{2024-01-02 03:04:05},{2025-01-02 03:04:05}}', null, '{{"\\x01","\\x02"},{"\\x03",null}}', '{{1.0},{2.00}}',
  '{{t},{f}}', null, '{{2024-01-02 03:04:05}}', null, null, row('a', 1, null), null, '(,)', null, '::1', null);
insert into kind (id, f4, f8, n, t, ts, tsz) values
  (4, 1e20, 1e300, 1e-30, 'null', '10000-01-01', '10000-12-31 23:59:59.999999+00'),
  (5, 1e-7, -0.0, -0.0, '{"not": "json"}', '-infinity', '-infinity'),
  (6, 16777216, 123456789.123456789, 1e131000, 'x', 'epoch', 'epoch');
