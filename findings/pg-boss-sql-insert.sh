#!/usr/bin/env bash
# pg-boss 12.38.0 on PostgreSQL 18.6. Its documentation offers SQL for bulk loads and calls `name` the only required column.
# Jobs that are inserted so have none of the policy and options of their queue: of a queue with the policy `singleton`, which
# has one active job at a time, two are active, and `retryLimit` and `expireInSeconds` are the defaults. Who loads by SQL has
# to repeat them in each row.
# Guess before: defaults or a trigger of the table take them from the queue, as `insert` of the API does.
# Seen: the lines below.
. "$(dirname "$0")/postgres.sh" 18.6.0

npm install --silent --no-fund --no-audit --prefix "$work" node@26.10.0 pg-boss@12.38.0 pg@8.23.1 > npm.log
cat > "$work/queues.mjs" << 'END'
import { PgBoss } from "pg-boss";
import pg from "pg";

const url = process.argv[2];
const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false });
await boss.start();
const client = new pg.Client(url);
await client.connect();
for (const queue of ["by_sql", "by_api"]) await boss.createQueue(queue, { policy: "singleton", retryLimit: 7, expireInSeconds: 33 });
await client.query("insert into pgboss.job (name) values ('by_sql'), ('by_sql')");
await boss.insert("by_api", [{ data: {} }, { data: {} }]);
for (const queue of ["by_sql", "by_api"]) {
  const fetched = [await boss.fetch(queue), await boss.fetch(queue)].map((jobs) => jobs.length);
  const { rows } = await client.query("select distinct policy, retry_limit, expire_seconds from pgboss.job where name = $1", [queue]);
  console.log(queue, ...fetched, JSON.stringify(rows));
}
await client.end();
await boss.stop();
END
same "$("$work/node_modules/.bin/node" "$work/queues.mjs" "postgres://postgres@localhost/postgres?host=$work")" \
'by_sql 1 1 [{"policy":null,"retry_limit":2,"expire_seconds":900}]
by_api 1 0 [{"policy":"singleton","retry_limit":7,"expire_seconds":33}]'
