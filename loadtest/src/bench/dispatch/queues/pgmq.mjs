// Fills a queue of pgmq and works it off: `fill URL COUNT`, `work URL COUNT`.

import { readFileSync } from "node:fs";
import pg from "pg";

// From PyPI's package pgmq, which has the SQL of the extension.
const version = readFileSync(new URL("pgmq/sql/VERSION", import.meta.url), "utf8").trim();
const [command, url, count] = process.argv.slice(2);
const jobs = Number(count);
const connections = 4;
const pool = new pg.Pool({ connectionString: url, max: connections });

async function fill() {
  await pool.query(readFileSync(new URL("pgmq/sql/pgmq.sql", import.meta.url), "utf8"));
  await pool.query("select pgmq.create('deliver')");
  for (let first = 1; first <= jobs; first += 10_000) {
    await pool.query(
      `select count(*) from pgmq.send_batch('deliver', array(
         select jsonb_build_object('id', id, 'endpoint', rpad('https://push.example/' || id || '/', 255, 'x'))
           from generate_series($1::int, $2::int) id))`,
      [first, Math.min(first + 9_999, jobs)],
    );
  }
  await pool.query("vacuum analyze");
}

async function work() {
  let handled = 0;
  // `read` and `delete` of many messages (docs/api/sql/functions). `pop` is faster, but deletes a message before it is
  // handled, so that a crash loses it.
  async function worker() {
    for (;;) {
      const { rows } = await pool.query("select * from pgmq.read('deliver', vt => 30, qty => 1000)");
      if (rows.length === 0) return;
      for (const _ of rows) handled++;
      await pool.query("select pgmq.delete('deliver', $1::bigint[])", [rows.map((row) => row.msg_id)]);
    }
  }
  const start = performance.now();
  await Promise.all(Array.from({ length: connections }, worker));
  const seconds = (performance.now() - start) / 1000;
  if (handled !== jobs) throw new Error(`handled ${handled} of ${jobs} jobs`);
  console.log(JSON.stringify({ jobs, seconds, version }));
}

await { fill, work }[command]();
await pool.end();
