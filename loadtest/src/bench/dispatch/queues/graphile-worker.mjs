// Fills a queue of graphile-worker and works it off: `fill URL COUNT`, `work URL COUNT`.

import { EventEmitter } from "node:events";
import { readFileSync } from "node:fs";
import pg from "pg";

// Without it, each job prints a line; graphile-worker's own load test (perfTest/run.js) sets it, too.
process.env.NO_LOG_SUCCESS = "1";
const { runMigrations, runOnce } = await import("graphile-worker");

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.resolve("graphile-worker"))));
const [command, url, count] = process.argv.slice(2);
const jobs = Number(count);

// "Performance" (worker.graphile.org/docs/performance) reaches the most with 24 concurrent jobs, a local queue, batches of
// completions without delay, and several instances. Two instances with two connections each (the documented minimum)
// were faster here than one with four, since an instance fetches only when its local queue is empty. The type of
// `localQueue.size` says that fast tasks may want a "much higher number". `refetchDelay` is that of
// perfTest/graphile.config.js.
const instances = 2;
const preset = {
  worker: {
    connectionString: url,
    concurrentJobs: 24,
    maxPoolSize: 2,
    localQueue: { size: 1000, refetchDelay: { durationMs: 10 } },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

async function fill() {
  await runMigrations({ preset });
  const client = new pg.Client(url);
  await client.connect();
  // `add_jobs` is the documented way to add many jobs (docs/sql-add-job).
  for (let first = 1; first <= jobs; first += 10_000) {
    await client.query(
      `select 1 from graphile_worker.add_jobs(array(
         select json_populate_record(null::graphile_worker.job_spec, json_build_object('identifier', 'deliver',
                  'payload', json_build_object('id', id, 'endpoint', rpad('https://push.example/' || id || '/', 255, 'x'))))
           from generate_series($1::int, $2::int) id))`,
      [first, Math.min(first + 9_999, jobs)],
    );
  }
  await client.query("vacuum analyze");
  await client.end();
}

async function work() {
  let handled = 0;
  let start;
  const events = new EventEmitter();
  events.once("worker:getJob:start", () => (start = performance.now()));
  const tasks = { deliver: () => void handled++ };
  // `runOnce` ends when no job is left and all completions are written. Completed jobs are deleted.
  await Promise.all(Array.from({ length: instances }, () => runOnce({ preset, events }, tasks)));
  const seconds = (performance.now() - start) / 1000;
  if (handled !== jobs) throw new Error(`handled ${handled} of ${jobs} jobs`);
  console.log(JSON.stringify({ jobs, seconds, version }));
}

await { fill, work }[command]();
