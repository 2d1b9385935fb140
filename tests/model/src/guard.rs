//! The guards that keep answers true. The tests remove each, to show that it is needed.

/// One guard of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A fill is installed only if the generation is the one noted before its statement.
    GenerationAtInstall,
    /// That check and the installation are one step, under the key's lock.
    AtomicInstall,
    /// A pass raises the generation before it drops the document from memory.
    RaiseBeforeDrop,
    /// The generation is noted before the statement takes its snapshot.
    GenerationBeforeRead,
    /// The disk writer leaves out documents whose generation has changed.
    PutCheck,
    /// What was dropped is called clean only once the drop is on disk.
    CleanAfterApply,
    /// The disk tier answers only where all drops have been applied.
    CleanCheck,
    /// The disk tier's answer goes to memory only if the generation is still the same.
    PromotionCheck,
    /// A pass queues its mark behind its drops.
    MarkAfterDrop,
    /// A load is joined only at the generation that it noted.
    JoinGeneration,
    /// A load is joined only if its statement was sent at most `max_staleness` ago.
    JoinAge,
    /// A pass moves `fresh_at` as its last act.
    FreshAtEnd,
    /// A pass moves `fresh_at` to its own start.
    FreshFromStart,
    /// Tiers answer only while `fresh_at` is at most `max_staleness` ago.
    FreshCheck,
    /// After a crash the disk tier answers only after a pass from its mark.
    ResumeFirst,
    /// Passes map a parent to its documents in their own snapshot; triggers only log the parent.
    MapInPass,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::GenerationAtInstall,
        Self::AtomicInstall,
        Self::RaiseBeforeDrop,
        Self::GenerationBeforeRead,
        Self::PutCheck,
        Self::CleanAfterApply,
        Self::CleanCheck,
        Self::PromotionCheck,
        Self::MarkAfterDrop,
        Self::JoinGeneration,
        Self::JoinAge,
        Self::FreshAtEnd,
        Self::FreshFromStart,
        Self::FreshCheck,
        Self::ResumeFirst,
        Self::MapInPass,
    ];
}
