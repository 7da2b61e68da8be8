//! The end of the journal, where the next record goes.

use super::area::Area;
use super::gaps::Gaps;
use super::space::Space;
use crate::format::journal::{Header, Place};

/// The end of the journal: its header, and the number and the place of the next record.
pub(super) struct Writer {
    pub header: Header,
    /// Whether the header was written by this opening, so that records may follow it.
    pub has_begun: bool,
    /// Whether the superblock records the header, or need not.
    pub is_noted: bool,
    pub space: Space,
    pub place: Place,
    pub gaps: Gaps,
}

impl Writer {
    /// The end of a journal with this header.
    pub fn new(area: &Area, header: Header, is_noted: bool) -> Writer {
        Writer {
            header,
            has_begun: false,
            is_noted,
            space: Space::new(area),
            place: Place { era: header.era, sequence: 0, previous: 0 },
            gaps: Gaps::new(area.gap_max),
        }
    }

    /// Begins a new era with this header.
    pub fn begin(&mut self, header: Header) {
        self.header = header;
        (self.has_begun, self.is_noted) = (true, false);
        self.place = Place { era: header.era, sequence: 0, previous: 0 };
        self.space.clear();
    }

    /// The invariants of the end of the journal.
    pub fn check(&self) {
        self.space.check();
        self.gaps.check();
        assert_eq!(self.place.era, self.header.era, "records are of the header's era");
        assert!(self.has_begun || self.place.sequence == 0, "records follow a header");
    }
}
