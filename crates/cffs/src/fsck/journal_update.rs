//! Additions of recovery to the busy log before it writes: everything that another recovery must
//! know if this one is interrupted.
//!
//! The new records follow the last epoch that counts. An epoch that was logged in part stays without
//! effect: its change was never written, and the sectors that are left of it do not follow from the
//! one that is written anew.

use super::Checker;
use super::disk::Place;
use crate::format::busy_log::{self, Record};
use crate::units::CgIndex;

impl Checker<'_> {
    /// Logs that bitmaps and blocks of the locator table are written in place, how many
    /// fragments were free in groups that it does not list, and what repairs freed. It is
    /// written before all else.
    pub(super) fn log_recovery(&mut self, groups: &[(CgIndex, u32)]) {
        let Some(scope) = &self.fast.scope else { return };
        let mut records = Vec::new();
        if !scope.settling {
            records.push(Record::Settling);
        }
        let is_listed = |cg: CgIndex| scope.groups.get(&cg.0).is_some_and(Option::is_some);
        let unlisted = groups.iter().filter(|(cg, _)| !is_listed(*cg));
        records.extend(unlisted.map(|(cg, free)| Record::Group { cg: *cg, free: *free }));
        let released = self.fast.released.iter().filter(|run| !scope.freed.contains(run));
        records.extend(released.map(|run| Record::Freed(*run)));
        if !records.is_empty() {
            records.push(Record::End);
            self.append_to_log(&records);
        }
    }

    fn append_to_log(&mut self, records: &[Record]) {
        let Some(scope) = &self.fast.scope else { return };
        let (mut position, old) = scope.end.clone();
        let sectors_max = self.layout.busy_log_half_blocks * self.layout.block_sectors();
        let len = self.layout.sector_bytes as usize;
        let start = self.layout.block_offset(self.layout.busy_log_half(position.generation));
        let offset = start + u64::from(position.sequence) * u64::from(self.layout.sector_bytes);
        let mut sectors = Vec::new();
        let mut sector = vec![0; len];
        busy_log::init(&mut sector, position);
        for record in old.iter().chain(records) {
            if !busy_log::append(&mut sector, record) {
                position.previous = busy_log::seal(&mut sector, self.checksum);
                position.sequence += 1;
                sectors.append(&mut sector);
                sector.resize(len, 0);
                busy_log::init(&mut sector, position);
                busy_log::append(&mut sector, record);
            }
        }
        busy_log::seal(&mut sector, self.checksum);
        sectors.append(&mut sector);
        if position.sequence >= sectors_max {
            return self.doubt("the busy log is too small for the records of recovery");
        }
        self.disk.change(offset, &sectors);
        self.disk.write_first(Place { offset, len: sectors.len() });
    }
}
