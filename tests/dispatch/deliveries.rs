//! Jobs that become due again and again, and what came of their deliveries.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use super::Bed;
use super::sink::{Answer, TestSink};

pub(super) const BATCH: usize = 20;
pub(super) const CONNECTIONS: usize = 2;
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);
pub(super) const TAKEOVER: Duration = Duration::from_secs(3);

/// How many jobs there are.
pub(super) const COUNT: usize = 120;

/// Jobs in six slots. Each due moment that is moved forward is noted.
pub(super) const JOBS: &str = "create table job (id int primary key, slot int2 not null, due timestamptz not null, \
      touched int not null default 0) with (fillfactor = 50); \
    create index on job (slot, due); \
    insert into job select n, n % 6, now() from generate_series(1, 120) n; \
    create table moved (id int not null, due timestamptz not null); \
    create function note() returns trigger language plpgsql as $$ begin \
      insert into public.moved values (old.id, old.due); return null; end $$; \
    create trigger noted after update on job for each row when (new.due > old.due) \
      execute function note()";

/// A dispatch of [`JOBS`], each of which is due again after a second.
pub(super) fn jobs(delivery: &str) -> String {
    format!(
        "[[dispatch]]\nname = 'jobs'\ntable = 'job'\ndue = 'due'\npartition = 'slot'\ninterval = '1s'\n\
         delivery = '{delivery}'\nbatch = {BATCH}\nconnections = {CONNECTIONS}\npoll_interval = '{}ms'\n\
         takeover = '{}s'\n[dispatch.sink]\nSINK\nrows = 5\nconcurrency = 1\n",
        POLL_INTERVAL.as_millis(),
        TAKEOVER.as_secs(),
    )
}

/// A sink that takes a while, so that requests are in flight at any moment.
pub(super) async fn slow_sink() -> TestSink {
    TestSink::answering(|_, _| Answer::after(Duration::from_millis(40))).await
}

/// The deliveries of [`JOBS`] until now. Each due moment of a job is one.
pub(super) struct Deliveries {
    /// When each came, by its id, job and due moment.
    receipts: HashMap<(String, i64, String), Vec<SystemTime>>,
    /// Job and due moment of those that were rescheduled.
    moved: HashSet<(i64, String)>,
}

impl Deliveries {
    pub(super) async fn of(bed: &Bed) -> Self {
        let mut receipts: HashMap<_, Vec<SystemTime>> = HashMap::new();
        for one in bed.sink.received() {
            for element in one.elements() {
                let text = |name: &str| element[name].as_str().unwrap().to_owned();
                let job = element["row"]["id"].as_i64().unwrap();
                let delivery = (text("id"), job, text("due"));
                receipts.entry(delivery).or_default().push(one.at);
            }
        }
        // A job that was given back is due as it was.
        let moved = "select coalesce(array_agg(id || ' ' || (to_json(due at time zone 'UTC') #>> '{}') || '+00:00'), '{}') \
                     from moved where (id, due) not in (select id, due from job)";
        let moved: Vec<String> = bed.value(moved).await;
        let moved = moved.iter().map(|one| {
            let (job, due) = one.split_once(' ').unwrap();
            (job.parse().unwrap(), due.to_owned())
        });
        Self {
            receipts,
            moved: moved.collect(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.receipts.len()
    }

    /// How many were rescheduled and did not come.
    pub(super) fn lost(&self) -> usize {
        let came = self.receipts.keys();
        let came: HashSet<(i64, String)> = came.map(|(_, job, due)| (*job, due.clone())).collect();
        self.moved.difference(&came).count()
    }

    /// When each repetition came, and when the same delivery had come before.
    pub(super) fn repetitions(&self) -> Vec<(SystemTime, SystemTime)> {
        let pairs = self.receipts.values().flat_map(|times| times.windows(2));
        pairs.map(|pair| (pair[0], pair[1])).collect()
    }

    /// The longest time between a due moment after `since` and its delivery.
    pub(super) fn latest(&self, since: SystemTime) -> Duration {
        let late = self.receipts.iter().filter_map(|((_, _, due), times)| {
            let due = due.replace("+00:00", "Z");
            let due = humantime::parse_rfc3339(&due).unwrap();
            (due > since).then(|| times[0].duration_since(due).unwrap_or_default())
        });
        late.max().unwrap_or_default()
    }
}
