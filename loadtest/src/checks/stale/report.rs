//! What a run found, and whether that is good enough.

use std::sync::Arc;
use std::time::Duration;

use larder::clock::Boottime;

use crate::checks::faults::{Fault, Injection};
use crate::checks::stale::StaleArgs;
use crate::harness::interference::{DELAY_MAX, Impact, Interference};
use crate::harness::testbed::LoadMeasurements;
use crate::workload::counters::{PhaseCounts, ReadResult, ratio};
use crate::workload::history::{ReadVerdict, TransactionEnd};
use crate::workload::record::{Record, RunPhase, Violation};

/// The least share of hits among the reads of quiet times: with fewer, the run proves nothing about tiers.
const HIT_RATIO_MIN: f64 = 0.60;
/// The least share of each tier among these reads.
const TIER_SHARE_MIN: f64 = 0.05;
/// So much of a violation's answer is printed.
const BODY_SHOWN_BYTES: usize = 1_200;

/// A fault from its beginning until larder was ready after it.
#[derive(Clone, Debug)]
pub(crate) struct FaultSpan {
    pub(crate) fault: Fault,
    pub(crate) began: Boottime,
    pub(crate) ended: Boottime,
    /// The part of it until larder was ready again.
    pub(crate) recovery: Duration,
    pub(crate) injection: Injection,
    /// On others' statements, until then.
    pub(crate) impact: Impact,
}

impl FaultSpan {
    pub(crate) fn took(&self) -> Duration {
        self.ended.since(self.began)
    }

    /// A line that is printed after the fault.
    pub(crate) fn line(&self, start: Boottime) -> String {
        let (from, to) = (self.began.since(start), self.ended.since(start));
        let name = self.fault.name();
        match &self.injection {
            Injection::Done => format!(
                "{:7.1} s to {:6.1} s  {name}, ready {:.1} s after it{}",
                from.as_secs_f64(),
                to.as_secs_f64(),
                self.recovery.as_secs_f64(),
                self.impact_text(),
            ),
            Injection::Impossible(reason) => {
                format!(
                    "{:7.1} s  {name} SKIPPED, not injected: {reason}",
                    from.as_secs_f64()
                )
            }
            Injection::Failed(reason) => {
                format!(
                    "{:7.1} s  {name} FAILED: {reason}{}",
                    from.as_secs_f64(),
                    self.impact_text()
                )
            }
        }
    }

    /// Empty where larder hindered no statement.
    fn impact_text(&self) -> String {
        let Impact {
            failed,
            delayed,
            longest_wait,
        } = self.impact;
        if self.impact.is_within_goal() {
            String::new()
        } else {
            format!(
                "; larder failed {failed} statements and delayed {delayed}, up to {longest_wait:.0?}"
            )
        }
    }
}

/// All that a run has found.
pub(crate) struct StaleReport {
    pub(crate) args: StaleArgs,
    pub(crate) seed: u64,
    pub(crate) elapsed: Duration,
    pub(crate) measured: LoadMeasurements,
    pub(crate) spans: Vec<FaultSpan>,
    /// Why the run ended early.
    pub(crate) broken: Option<String>,
    pub(crate) record: Arc<Record>,
    pub(crate) interference: Arc<Interference>,
}

impl StaleReport {
    /// Prints it; returns whether everything held.
    pub(crate) fn print(&self) -> bool {
        print_violations(&self.record, &self.spans);
        self.print_figures();
        self.print_faults();
        self.interference.print();
        let failures = self.failures();
        for failure in &failures {
            println!("FAILED: {failure}");
        }
        if failures.is_empty() {
            println!("ok: 0 stale in {} checked reads", self.record.reads());
        }
        failures.is_empty()
    }

    fn print_figures(&self) {
        let (counters, record) = (&self.measured.counters, &self.record);
        let seconds = self.elapsed.as_secs_f64();
        let quiet = counters.phase(RunPhase::Quiet);
        // Counts are far below 2^52, so the casts are exact.
        println!(
            "\n{} reads checked in {seconds:.0} s ({:.0}/s; {} of clients that see their own documents alone, {} strict), {} commits ({:.0}/s), seed {}",
            record.reads(),
            record.reads() as f64 / seconds,
            record.restricted_reads(),
            record.strict_reads(),
            record.commits(),
            record.commits() as f64 / seconds,
            self.seed
        );
        println!("stale, rolled back or made up: {}", record.violations());
        println!(
            "quiet times: {} reads, hit ratio {:.3}: memory {:.3}, disk {:.3}; misses {:.3}, bypass {:.3}",
            quiet.answered(),
            quiet.share(quiet.hits()),
            quiet.share(quiet.of(ReadResult::Memory)),
            quiet.share(quiet.of(ReadResult::Disk)),
            quiet.share(quiet.of(ReadResult::Miss)),
            quiet.share(quiet.of(ReadResult::Bypass)),
        );
        println!(
            "availability: {} in quiet times, {} in all; 503 or 504: {} and {}, no answer: {} and {}, odd: {} {:?}",
            availability(&quiet),
            availability(&counters.all()),
            quiet.of(ReadResult::Unavailable),
            counters.all().of(ReadResult::Unavailable),
            quiet.of(ReadResult::Unanswered),
            counters.all().of(ReadResult::Unanswered),
            counters.all().of(ReadResult::Odd),
            counters.odd,
        );
        let staleness = &counters.staleness;
        println!(
            "answers older than a commit before the read (at most {:?} is allowed): {}; p50 {:?}, p99 {:?}, worst {:?}",
            record.max_staleness,
            staleness.count(),
            staleness.quantile(0.5),
            staleness.quantile(0.99),
            staleness.max(),
        );
        let lags = &self.measured.lags;
        println!(
            "commit to no longer served, quiet times, {} probes: p50 {:?}, p99 {:?}, max {:?}",
            lags.count(),
            lags.quantile(0.5),
            lags.quantile(0.99),
            lags.max(),
        );
    }

    fn print_faults(&self) {
        if self.args.faults.list.is_empty() {
            return;
        }
        println!(
            "\n{:<19} {:>5} {:>9} {:>9} {:>8} {:>8} {:>8} {:>12} {:>6} {:>7} {:>12}",
            "fault",
            "times",
            "reads",
            "hits",
            "bypass",
            "503/504",
            "none",
            "ready after",
            "failed",
            "delayed",
            "longest wait"
        );
        for fault in &self.args.faults.list {
            let number = Fault::ALL.iter().position(|other| other == fault);
            let counts = self
                .measured
                .counters
                .phase(RunPhase::Fault(number.unwrap_or_default()));
            let spans = self.spans.iter().filter(|span| span.fault == *fault);
            let recovery = spans.clone().map(|span| span.recovery).max();
            let mut impact = Impact::default();
            spans.for_each(|span| impact.add(span.impact));
            println!(
                "{:<19} {:>5} {:>9} {:>9.3} {:>8.3} {:>8} {:>8} {:>10.1} s {:>6} {:>7} {:>9} ms",
                fault.name(),
                self.times(*fault),
                counts.answered(),
                counts.share(counts.hits()),
                counts.share(counts.of(ReadResult::Bypass)),
                counts.of(ReadResult::Unavailable),
                counts.of(ReadResult::Unanswered),
                recovery.unwrap_or_default().as_secs_f64(),
                impact.failed,
                impact.delayed,
                impact.longest_wait.as_millis(),
            );
        }
        println!();
    }

    fn times(&self, fault: Fault) -> usize {
        let done = |span: &&FaultSpan| span.fault == fault && span.injection == Injection::Done;
        self.spans.iter().filter(done).count()
    }

    /// Everything that did not hold.
    fn failures(&self) -> Vec<String> {
        let mut failures: Vec<String> = self.broken.iter().cloned().collect();
        let record = &self.record;
        if record.violations() > 0 {
            failures.push(format!(
                "{} answers that larder must never give",
                record.violations()
            ));
        }
        if record.reads() < self.args.reads {
            failures.push(format!(
                "{} reads were checked, fewer than {}",
                record.reads(),
                self.args.reads
            ));
        }
        let mut impact = self.interference.take_impact();
        self.spans.iter().for_each(|span| impact.add(span.impact));
        if !impact.is_within_goal() {
            failures.push(format!(
                "{} statements failed because of larder, {} waited for it longer than {DELAY_MAX:?}, up to {:.0?}",
                impact.failed, impact.delayed, impact.longest_wait
            ));
        }
        if let Some(body) = self.measured.counters.odd.get(&500) {
            failures.push(format!("answers of 500, such as {body}"));
        }
        failures.extend(proofless(&self.measured.counters.phase(RunPhase::Quiet)));
        for span in &self.spans {
            if let Injection::Failed(reason) = &span.injection {
                failures.push(format!("{}: {reason}", span.fault.name()));
            }
        }
        for fault in &self.args.faults.list {
            let impossible = self.spans.iter().any(|span| {
                span.fault == *fault && matches!(span.injection, Injection::Impossible(_))
            });
            if self.times(*fault) == 0 && (self.args.faults.by_name || !impossible) {
                let why = if impossible {
                    "this machine can't"
                } else {
                    "the time was too short, give more --seconds"
                };
                failures.push(format!("{} was not injected: {why}", fault.name()));
            }
        }
        failures
    }
}

/// Prints the first answers that larder must never give.
pub(crate) fn print_violations(record: &Record, spans: &[FaultSpan]) {
    for violation in record.first_violations() {
        print!("{}", violation_text(&violation, record, spans));
    }
}

/// One answer that must never be, with all that is known about it.
fn violation_text(violation: &Violation, record: &Record, spans: &[FaultSpan]) -> String {
    let ms = |moment: Boottime| {
        // Before or after the beginning of the read.
        let after = moment.since(violation.began).as_secs_f64();
        let before = violation.began.since(moment).as_secs_f64();
        (after - before) * 1e3
    };
    let (path, way) = (record.path(violation.key), &violation.cache_status);
    let path = format!("{path} for {:?}", violation.viewer);
    let mut text = match &violation.verdict {
        ReadVerdict::Stale(missed) => format!(
            "\nSTALE {path}: shows revision {}, and {} was committed {:.1} ms before the read began\n",
            missed.seen,
            missed.required,
            -ms(missed.committed_at),
        ),
        ReadVerdict::RolledBack { revision } => {
            format!("\nROLLED BACK {path}: shows revision {revision}\n")
        }
        _ => format!("\nMADE UP {path}: shows what no commit has made\n"),
    };
    text += &format!(
        "  read began {:.3} s after the start, ended {:.1} ms later; {way}; {} to {}\n",
        violation.began.since(record.began).as_secs_f64(),
        ms(violation.ended),
        phase(violation.phases[0]),
        phase(violation.phases[1]),
    );
    let near = spans.iter().filter(|span| span.began <= violation.ended);
    if let Some(span) = near.max_by_key(|span| span.began) {
        text += &format!("  last fault: {}\n", span.line(record.began).trim());
    }
    for version in &violation.versions {
        let outcome = match version.outcome {
            TransactionEnd::Open => "commit under way".to_owned(),
            TransactionEnd::Committed(at) => format!("committed {:.1} ms", ms(at)),
            TransactionEnd::RolledBack => "rolled back".to_owned(),
        };
        text += &format!("  revision {}: {outcome}\n", version.revision);
    }
    text += &format!("  {}\n", shown(&violation.body));
    text
}

/// An answer without what only makes it long.
fn shown(body: &str) -> String {
    let pad = body.split_once(r#""pad":""#).and_then(|(before, rest)| {
        let (_, after) = rest.split_once('"')?;
        Some(format!(r#"{before}"pad":"…"{after}"#))
    });
    let whole = pad.unwrap_or_else(|| body.to_owned());
    whole.chars().take(BODY_SHOWN_BYTES).collect()
}

fn phase(phase: RunPhase) -> &'static str {
    match phase {
        RunPhase::Settling => "settling",
        RunPhase::Quiet => "quiet",
        RunPhase::Fault(number) => Fault::ALL.get(number).map_or("?", |fault| fault.name()),
    }
}

fn availability(counts: &PhaseCounts) -> String {
    format!("{:.4} %", 100.0 * ratio(counts.answered(), counts.total()))
}

/// Why the quiet times prove nothing about the tiers.
fn proofless(quiet: &PhaseCounts) -> Vec<String> {
    let shares = [
        ("the tiers", quiet.hits(), HIT_RATIO_MIN),
        ("memory", quiet.of(ReadResult::Memory), TIER_SHARE_MIN),
        ("disk", quiet.of(ReadResult::Disk), TIER_SHARE_MIN),
    ];
    let too_few = |(tiers, hits, least): (&str, u64, f64)| {
        let share = quiet.share(hits);
        (share < least).then(|| {
            format!("{tiers} answered {share:.3} of the quiet times' reads, which proves nothing below {least}")
        })
    };
    shares.into_iter().filter_map(too_few).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::counters::ReadCounters;

    fn quiet(ways: &[(ReadResult, u32)]) -> Vec<String> {
        let mut counters = ReadCounters::new(0).unwrap();
        for (way, times) in ways {
            (0..*times).for_each(|_| counters.count(RunPhase::Quiet, *way));
        }
        proofless(&counters.phase(RunPhase::Quiet))
    }

    #[test]
    fn a_server_that_always_asks_postgresql_proves_nothing() {
        assert_eq!(quiet(&[(ReadResult::Miss, 100)]).len(), 3);
        assert_eq!(quiet(&[]).len(), 3);
    }

    #[test]
    fn a_body_is_shown_without_its_padding() {
        let body = r#"{"id":1,"pad":"111","children":[]}"#;
        assert_eq!(shown(body), r#"{"id":1,"pad":"…","children":[]}"#);
        assert_eq!(shown("(404)"), "(404)");
    }

    #[test]
    fn both_tiers_must_work() {
        let good = [
            (ReadResult::Memory, 55),
            (ReadResult::Disk, 5),
            (ReadResult::Bypass, 40),
        ];
        assert!(quiet(&good).is_empty());
        let few = quiet(&[
            (ReadResult::Memory, 54),
            (ReadResult::Disk, 5),
            (ReadResult::Miss, 41),
        ]);
        assert!(few[0].starts_with("the tiers answered 0.590"), "{few:?}");
        let no_disk = quiet(&[(ReadResult::Memory, 97), (ReadResult::Disk, 3)]);
        assert!(no_disk[0].starts_with("disk answered 0.030"), "{no_disk:?}");
    }
}
