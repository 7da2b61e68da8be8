//! Additions of recovery to the intent log before it writes: everything that another recovery must
//! know if this one is interrupted.
//!
//! The new records follow the last epoch that counts. A partly logged epoch has no effect: its change was
//! never written, and its remaining sectors do not continue the sector that recovery writes.

use super::disk::Place;
use super::fast::FastRecovery;
use crate::format::intent_log::{self, Record};
use crate::units::CgIndex;

impl FastRecovery<'_, '_> {
    /// Logs that bitmaps, blocks of the locator table and buckets of indexes are written in place, how many
    /// fragments were free in groups that it does not list, and the runs that repairs freed. These records
    /// are written before anything else.
    pub(super) fn log_recovery(&mut self, groups: &[(CgIndex, u32)]) {
        let Some(scope) = &self.walk.scope else { return };
        let mut records = Vec::new();
        if !scope.settling {
            records.push(Record::Settling);
        }
        let is_listed = |cg: CgIndex| scope.groups.get(&cg.0).is_some_and(Option::is_some);
        let unlisted = groups.iter().filter(|(cg, _)| !is_listed(*cg));
        records.extend(unlisted.map(|(cg, free)| Record::Group { cg: *cg, free: *free }));
        let released = self.released.iter().filter(|run| !scope.freed.contains(run));
        records.extend(released.map(|run| Record::Freed(*run)));
        if !records.is_empty() {
            records.push(Record::End);
            self.append_to_log(&records);
        }
    }

    fn append_to_log(&mut self, records: &[Record]) {
        let layout = self.walk.meta.layout;
        let Some(scope) = &self.walk.scope else { return };
        let (mut position, old) = scope.end.clone();
        let sectors_max = layout.intent_log_half_blocks * layout.block_sectors();
        let len = layout.sector_bytes as usize;
        let start = self.walk.meta.layout.block_offset(layout.intent_log_half(position.generation));
        let offset = start + u64::from(position.sequence) * u64::from(layout.sector_bytes);
        let mut sectors = Vec::new();
        let mut sector = vec![0; len];
        intent_log::init(&mut sector, position);
        for record in old.iter().chain(records) {
            if !intent_log::append(&mut sector, record) {
                position.previous = intent_log::seal(&mut sector, self.walk.meta.checksum);
                position.sequence += 1;
                sectors.append(&mut sector);
                sector.resize(len, 0);
                intent_log::init(&mut sector, position);
                intent_log::append(&mut sector, record);
            }
        }
        intent_log::seal(&mut sector, self.walk.meta.checksum);
        sectors.append(&mut sector);
        if position.sequence >= sectors_max {
            return self
                .walk
                .findings
                .doubt("the intent log is too small for the records of recovery");
        }
        debug_assert!(sectors.len().is_multiple_of(len), "the log is written in whole sectors");
        self.walk.meta.disk.change(offset, &sectors);
        self.walk.meta.disk.write_first(Place { offset, len: sectors.len() });
    }
}
