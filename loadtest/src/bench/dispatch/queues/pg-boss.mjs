// Fills a queue of pg-boss and works it off: `fill URL COUNT`, `work URL COUNT`.

import { readFileSync } from "node:fs";
import pg from "pg";
import { PgBoss } from "pg-boss";

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.resolve("pg-boss"))));
const [command, url, count] = process.argv.slice(2);
const jobs = Number(count);
const queue = "deliver";
const connections = 4;

async function fill(boss) {
  // A table of its own is for large queues (pgboss.io/api/queues, `partition`).
  await boss.createQueue(queue, { partition: true });
  const client = new pg.Client(url);
  await client.connect();
  // SQL is documented for bulk loads (pgboss.io/sql/job-table); all columns but the name have defaults.
  await client.query(
    `insert into pgboss.job (name, data)
     select $1, jsonb_build_object('id', id, 'endpoint', rpad('https://push.example/' || id || '/', 255, 'x'))
       from generate_series(1, $2::int) id`,
    [queue, jobs],
  );
  await client.query("vacuum analyze");
  await client.end();
}

async function work(boss) {
  let handled = 0;
  // "Fetch then delete" in batches (pgboss.io/api/jobs, `fetch` and `deleteJob`). Faster here than `complete`, and than
  // `work` with `batchSize`, `localConcurrency` and `burstWhenBatchFull`; both keep completed jobs for 7 days.
  async function worker() {
    for (;;) {
      const batch = await boss.fetch(queue, { batchSize: 1000 });
      if (batch.length === 0) return;
      for (const _ of batch) handled++;
      await boss.deleteJob(queue, batch.map((job) => job.id));
    }
  }
  const start = performance.now();
  await Promise.all(Array.from({ length: connections }, worker));
  const seconds = (performance.now() - start) / 1000;
  if (handled !== jobs) throw new Error(`handled ${handled} of ${jobs} jobs`);
  console.log(JSON.stringify({ jobs, seconds, version }));
}

// Maintenance and cron would share the four connections, so they are off (pgboss.io/api/constructor).
const boss = new PgBoss({ connectionString: url, max: connections, supervise: false, schedule: false });
boss.on("error", (error) => console.error(error));
await boss.start();
await { fill, work }[command](boss);
await boss.stop();
