//! What readers count.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::workload::history::ReadVerdict;
use crate::workload::record::{RunPhase, STRICT};

/// How a read was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    Memory,
    Disk,
    Miss,
    Bypass,
    /// 503 or 504: larder says that it can't answer.
    Unavailable,
    /// No connection, or one that ended: larder is not there.
    Unanswered,
    /// Another status, or a way that was not asked for.
    Odd,
}

impl ReadResult {
    /// By the answer's status and its Cache-Status.
    pub(crate) fn of(status: u16, cache_status: &str) -> Self {
        let cache_status = cache_status.strip_suffix(STRICT).unwrap_or(cache_status);
        match (status, cache_status.strip_prefix("larder; ")) {
            (200 | 404, Some("hit; detail=memory")) => Self::Memory,
            (200 | 404, Some("hit; detail=disk")) => Self::Disk,
            // A restricted client is told no more.
            (404, Some("fwd=miss")) => Self::Miss,
            (200 | 404, Some(way)) if way.starts_with("fwd=miss;") => Self::Miss,
            (200 | 404, Some(way)) if way.starts_with("fwd=bypass;") => Self::Bypass,
            (503 | 504, _) => Self::Unavailable,
            _ => Self::Odd,
        }
    }

    /// Whether the answer says something about the document.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, Self::Memory | Self::Disk | Self::Miss | Self::Bypass)
    }
}

/// Reads of one phase by their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PhaseCounts([u64; 7]);

impl PhaseCounts {
    pub(crate) fn of(&self, way: ReadResult) -> u64 {
        self.0[way as usize]
    }

    /// Reads that were answered with the document or its absence.
    pub(crate) fn answered(&self) -> u64 {
        self.hits() + self.of(ReadResult::Miss) + self.of(ReadResult::Bypass)
    }

    pub(crate) fn hits(&self) -> u64 {
        self.of(ReadResult::Memory) + self.of(ReadResult::Disk)
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// `part` of the answered reads, 0 to 1.
    pub(crate) fn share(&self, part: u64) -> f64 {
        ratio(part, self.answered())
    }

    fn add(&mut self, other: &Self) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum += count;
        }
    }
}

/// 0 where there is nothing to divide by.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    // Counts are far below 2^52, so the casts are exact.
    part as f64 / whole as f64
}

/// Durations to three digits, 1 µs to an hour.
#[derive(Clone)]
pub(crate) struct Durations(Histogram<u64>);

impl Durations {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(Histogram::new_with_bounds(1, 3_600_000_000, 3)?))
    }

    pub(crate) fn note(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.0.saturating_record(micros);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The duration that `share` (0 to 1) of all do not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(share))
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }

    pub(crate) fn mean(&self) -> Duration {
        Duration::from_secs_f64(self.0.mean() / 1e6)
    }

    pub(crate) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        Ok(self.0.add(&other.0)?)
    }
}

/// What a reader counts.
#[derive(Clone)]
pub(crate) struct ReadCounters {
    phases: Vec<PhaseCounts>,
    /// How much older than what was committed when the read began answers were that showed an older document.
    pub(crate) staleness: Durations,
    /// Unexpected statuses, with the first body of each.
    pub(crate) odd: BTreeMap<u16, String>,
}

/// Of a body.
const SHOWN_CHARS: usize = 300;

impl ReadCounters {
    pub(crate) fn new(faults: usize) -> anyhow::Result<Self> {
        Ok(Self {
            phases: vec![PhaseCounts::default(); RunPhase::Fault(faults).index()],
            staleness: Durations::new()?,
            odd: BTreeMap::new(),
        })
    }

    pub(crate) fn count(&mut self, phase: RunPhase, way: ReadResult) {
        self.phases[phase.index()].0[way as usize] += 1;
    }

    pub(crate) fn note_odd(&mut self, status: u16, body: &str) {
        let shown = || body.chars().take(SHOWN_CHARS).collect();
        self.odd.entry(status).or_insert_with(shown);
    }

    pub(crate) fn note_verdict(&mut self, verdict: &ReadVerdict) {
        if let ReadVerdict::Older(late) = verdict {
            self.staleness.note(*late);
        }
    }

    pub(crate) fn phase(&self, phase: RunPhase) -> PhaseCounts {
        self.phases[phase.index()]
    }

    pub(crate) fn all(&self) -> PhaseCounts {
        let mut all = PhaseCounts::default();
        self.phases.iter().for_each(|counts| all.add(counts));
        all
    }

    pub(crate) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        for (sum, counts) in self.phases.iter_mut().zip(&other.phases) {
            sum.add(counts);
        }
        for (status, body) in &other.odd {
            self.note_odd(*status, body);
        }
        self.staleness.add(&other.staleness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_from_the_answer() {
        for (status, cache_status, way) in [
            (200, "larder; hit; detail=memory", ReadResult::Memory),
            (404, "larder; hit; detail=disk", ReadResult::Disk),
            (
                200,
                "larder; fwd=miss; stored; detail=postgres; collapsed",
                ReadResult::Miss,
            ),
            (404, "larder; fwd=miss", ReadResult::Miss),
            (200, "larder; fwd=miss", ReadResult::Odd),
            (200, "larder; fwd=bypass; detail=feed", ReadResult::Bypass),
            (200, "larder; hit; detail=stale", ReadResult::Odd),
            (404, "", ReadResult::Odd),
            (503, "", ReadResult::Unavailable),
            (504, "", ReadResult::Unavailable),
            (500, "", ReadResult::Odd),
        ] {
            assert_eq!(
                ReadResult::of(status, cache_status),
                way,
                "{status} {cache_status}"
            );
        }
    }

    #[test]
    fn tallies_add_up() {
        let mut sum = ReadCounters::new(2).unwrap();
        for (phase, way) in [
            (RunPhase::Quiet, ReadResult::Memory),
            (RunPhase::Quiet, ReadResult::Disk),
            (RunPhase::Quiet, ReadResult::Miss),
            (RunPhase::Quiet, ReadResult::Unavailable),
            (RunPhase::Fault(1), ReadResult::Bypass),
        ] {
            let mut counters = ReadCounters::new(2).unwrap();
            counters.count(phase, way);
            counters.note_verdict(&ReadVerdict::Older(Duration::from_millis(5)));
            sum.add(&counters).unwrap();
        }
        let quiet = sum.phase(RunPhase::Quiet);
        assert_eq!((quiet.answered(), quiet.hits(), quiet.total()), (3, 2, 4));
        assert_eq!(sum.all().answered(), 4);
        assert_eq!(sum.staleness.count(), 5);
    }
}
