//! The editor makes the repairs that the walk recorded, in the overlay.

use super::fix::{Fix, Patch};
use super::lost_found::LostFound;
use super::map_writer::MapWriter;
use super::walk::Walk;
use crate::format::extent::Extent;
use crate::format::index::INDEX_OFFSET_BYTES;
use crate::format::inode::InodeFlags;
use crate::format::sector::{self, Body};
use crate::units::{Container, InodeNo, SectorIndex};

/// Changes the metadata in the overlay.
pub(super) struct Editor<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl<'c> Editor<'_, 'c> {
    pub(super) fn maps(&mut self) -> MapWriter<'_, 'c> {
        MapWriter { walk: self.walk }
    }
}

impl Editor<'_, '_> {
    /// Applies the recorded repairs; returns true if the walk must be repeated.
    pub(super) fn apply_fixes(&mut self) -> bool {
        let fixes = std::mem::take(&mut self.walk.round.fixes);
        let mut again = false;
        // Repairs that identify an entry by its slot come before those that renumber the slots.
        let (late, early): (Vec<Fix>, Vec<Fix>) = fixes.into_iter().partition(Fix::needs_round);
        for fix in early {
            self.apply(&fix);
        }
        for fix in late {
            again = true;
            self.apply(&fix);
        }
        self.walk.meta.stamp_directories();
        again
    }

    fn apply(&mut self, fix: &Fix) {
        match fix {
            Fix::Patch(ino, patch) => drop(self.walk.meta.patch(*ino, patch)),
            Fix::RemoveEntry { container, slot } => {
                self.walk.meta.edit(*container, |image| sector::remove(image, *slot));
            }
            Fix::ToReference { container, slot, ino, sector } => {
                self.make_reference(*container, *slot, *ino, *sector);
            }
            Fix::DropIndex(dir) => self.drop_index(*dir),
            Fix::SetMap(ino, extents) => {
                self.maps().set_map(*ino, extents);
                let clear_flags = InodeFlags::CONTENT_CHECKSUM;
                self.walk.meta.patch(*ino, &Patch { clear_flags, ..Patch::default() });
            }
            Fix::CutTarget(ino, len) => self.cut_target(*ino, *len),
            Fix::SetAttributes(ino, list) => self.set_attributes(*ino, list),
            Fix::ResetSector(container) => self.reset_sector(*container),
            Fix::RebuildSector(container) => self.rebuild_sector(*container),
            Fix::FillHoles(ino, end) => self.fill_holes(*ino, *end),
            Fix::Forget(ino) => self.remove_inode(*ino),
            Fix::Reconnect(ino) => LostFound { walk: self.walk }.reconnect(*ino),
            Fix::Externalize(ino) => LostFound { walk: self.walk }.externalize(*ino),
            Fix::Resurrect { ino, generation, extents } => {
                LostFound { walk: self.walk }.resurrect(*ino, *generation, extents);
            }
            Fix::RestoreSystem(index) => self.restore_system(*index),
            Fix::RemakeSystem(ino) => self.remake_system(*ino),
            Fix::Again => {}
        }
    }

    fn make_reference(
        &mut self,
        container: Container,
        slot: u16,
        ino: InodeNo,
        sector: SectorIndex,
    ) {
        let body = Body::Reference { ino, sector };
        let file_type = self.walk.meta.inventory.get(ino).map(|found| found.file_type);
        self.walk.meta.edit(container, |image| {
            sector::replace(image, slot, &body);
            if let Some(file_type) = file_type {
                sector::set_file_type(image, slot, file_type);
            }
        });
    }

    pub(super) fn drop_index(&mut self, dir: InodeNo) {
        let base = INDEX_OFFSET_BYTES / u64::from(self.walk.meta.layout.fragment_bytes);
        let Some(file) = self.walk.meta.inventory.containers.get(&dir) else { return };
        let (index, data): (Vec<Extent>, Vec<Extent>) =
            file.map.iter().copied().partition(|extent| extent.logical >= base);
        if !index.is_empty() && !self.maps().set_map(dir, &data) {
            return;
        }
        for extent in &index {
            self.walk.space.used.release(extent.run());
        }
        self.walk.meta.edit_record(dir, |record| {
            let flags = record.inode.flags.get() & !InodeFlags::INDEXED.bits();
            record.inode.flags = flags.into();
            record.inode.set_entries(record.inode.entries(), 0);
        });
    }
}
