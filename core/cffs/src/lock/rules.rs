//! Rules of the lock table, and of data in flight. A test breaks one at a time, and the schedules of
//! `tests/schedules` must detect it.

/// How many choices a thread lingers.
#[cfg(feature = "schedules")]
const LINGER_CHOICES: u32 = 20;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Attributes and extents that an epoch writes stay in memory until the epoch is on the device.
    SpilledStays,
    /// A page stays in memory until the epoch that writes it is on the device.
    PagesStay,
    /// A page that was changed while an epoch wrote it stays.
    ChangedPagesStay,
    /// The pieces of an append stay together.
    AppendsTogether,
    /// One mark or quota is set or removed at a time.
    MarksInTurn,
    /// A trim holds the lock of epochs from finding free space to discarding it.
    TrimHoldsEpochs,
    /// Space is promised to a change until the change has taken it.
    PromiseHeld,
    /// A change holds the gate.
    GateForChanges,
    /// A change of two directories holds the gate exclusively.
    GateAlone,
    /// The lock of epochs is taken before the gate.
    EpochsBeforeGate,
    /// An inode stays locked until a change is complete.
    InodeHeld,
    /// A directory stays locked between finding a name and entering it in the table of recent names.
    DirectoryHeld,
    /// A directory is locked before its files.
    DirectoryFirst,
    /// An inode has one vnode.
    OneVnode,
    /// A block that was read before a write does not enter the cache after it.
    VersionsCompared,
    /// A thread that serves the run queue takes no segment's lock.
    ServedWithoutSegment,
    /// Readers of a run in flight are woken when it arrives.
    ArrivalsWake,
    /// Callers of an fsync are woken when an epoch ends.
    EpochsWake,
    /// Contents that were changed while they were compressed stay out of the cluster.
    ClustersCompared,
    /// An expanded cluster is forgotten when another one takes its place.
    ExpandedForgotten,
    /// A copy does not share contents in flight.
    InFlightNotLent,
}

impl Rule {
    /// The rules whose violations the schedules must detect: all but those of clusters, and those that have
    /// workloads of their own.
    pub const COMMON: [Rule; 14] = [
        Rule::SpilledStays,
        Rule::PagesStay,
        Rule::ChangedPagesStay,
        Rule::TrimHoldsEpochs,
        Rule::GateForChanges,
        Rule::GateAlone,
        Rule::EpochsBeforeGate,
        Rule::InodeHeld,
        Rule::DirectoryFirst,
        Rule::OneVnode,
        Rule::VersionsCompared,
        Rule::ServedWithoutSegment,
        Rule::ArrivalsWake,
        Rule::EpochsWake,
    ];

    /// The rules whose violations the schedules on volumes with compressed contents must detect.
    pub const OF_CLUSTERS: [Rule; 5] = [
        Rule::PagesStay,
        Rule::ChangedPagesStay,
        Rule::ClustersCompared,
        Rule::ExpandedForgotten,
        Rule::InFlightNotLent,
    ];

    /// Whether the rule is kept: always, but in a schedule that breaks it.
    #[inline(always)]
    pub fn holds(self) -> bool {
        #[cfg(feature = "schedules")]
        return super::schedule::holds(self);
        #[cfg(not(feature = "schedules"))]
        true
    }

    /// Where the rule is broken, gives other threads time to interfere.
    #[inline(always)]
    pub fn linger(self) {
        #[cfg(feature = "schedules")]
        if !self.holds() {
            (0..LINGER_CHOICES).for_each(|_| super::schedule::point());
        }
    }
}
