#!/usr/bin/env bash
# graphile-worker 0.18.0 on PostgreSQL 18.6. The type of its event `job:complete` says that the result has been written to the
# database by then. With `completeJobBatchDelay` the event comes before: the job's row is there until the batch is written.
# Who counts jobs as done by this event counts some that are done again after a crash.
# Guess before: the event waits for the batch.
# Seen: one row at the event, none once the worker has stopped.
. "$(dirname "$0")/postgres.sh" 18.6.0

npm install --silent --no-fund --no-audit --prefix "$work" node@26.10.0 graphile-worker@0.18.0 pg@8.23.1 > npm.log
cat > "$work/complete.mjs" << 'END'
import { EventEmitter } from "node:events";
import pg from "pg";

process.env.NO_LOG_SUCCESS = "1";
const { run, runMigrations, Logger } = await import("graphile-worker");
const logger = new Logger(() => () => {});
const preset = {
  worker: {
    connectionString: process.argv[2], concurrentJobs: 2, maxPoolSize: 4, logger,
    localQueue: { size: 3 }, completeJobBatchDelay: 2000,
  },
};
await runMigrations({ preset });
const client = new pg.Client(process.argv[2]);
await client.connect();
const count = async () => (await client.query("select count(*) from graphile_worker._private_jobs")).rows[0].count;
await client.query("select graphile_worker.add_job('task')");
const events = new EventEmitter();
const completed = new Promise((resolve) => events.once("job:complete", () => resolve(count())));
const runner = await run({ preset, events, noHandleSignals: true, parsedCronItems: [] }, { task: () => {} });
console.log("at job:complete:", await completed);
await runner.stop();
console.log("after the stop:", await count());
await client.end();
END
same "$("$work/node_modules/.bin/node" "$work/complete.mjs" "postgres://postgres@localhost/postgres?host=$work")" \
'at job:complete: 1
after the stop: 0'
