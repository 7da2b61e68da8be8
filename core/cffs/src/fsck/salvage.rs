//! Salvage: the last resort, a search of the whole device.
//!
//! Every sector of a directory names its owner. If nothing refers to them any more, all space that the walk
//! did not reach is searched for such sectors, free or not. Data in free space may have been deleted long
//! ago, so this is done only on request; the findings go to lost+found for inspection.

use std::collections::{BTreeMap, BTreeSet};

use super::search::Search;
use super::search::{Blocks, Wanted};
use crate::format::inode::FileType;
use crate::format::sector::{self, Body, Sector};
use crate::units::{FragRun, InodeNo};

impl Search<'_, '_> {
    /// Searches, once, for directories that nothing refers to.
    pub(super) fn salvage(&mut self) {
        if std::mem::replace(&mut self.tried.salvaged, true) {
            return;
        }
        let mut found = self.search_sectors(&Wanted::Unknown);
        for ino in self.walk.losses.incomplete.clone() {
            if let Some((generation, blocks)) = found.remove(&ino) {
                self.complete_directory(ino, generation, &blocks);
            }
        }
        let children: BTreeMap<InodeNo, BTreeSet<InodeNo>> =
            found.iter().map(|(ino, (_, blocks))| (*ino, self.subdirectories(blocks))).collect();
        for ino in tops(&children) {
            if let Some((generation, blocks)) = found.get(&ino) {
                self.take_lost_directory(ino, *generation, blocks);
            }
        }
    }

    /// The directories whose inodes are in these blocks. All inodes there keep their numbers, which
    /// are not given to others.
    fn subdirectories(&mut self, blocks: &Blocks) -> BTreeSet<InodeNo> {
        let layout = self.walk.meta.layout;
        let mut found = BTreeSet::new();
        for (start, _) in blocks.values() {
            let place = self.walk.meta.run_place(FragRun::new(*start, layout.block_fragments()));
            let bytes = self.walk.meta.disk.read(place.offset, place.len);
            for image in bytes.chunks_exact(layout.sector_bytes as usize) {
                let Some((container, generation)) = self.walk.meta.identify(image) else {
                    continue;
                };
                self.walk.number_max = self.walk.number_max.max(container.file.0);
                if sector::verify(image, container, generation, self.walk.meta.checksum).is_err() {
                    continue;
                }
                for entry in Sector::new(image).entries() {
                    self.walk.number_max = self.walk.number_max.max(entry.ino().0);
                    let is_embedded = matches!(entry.body, Body::Embedded(_));
                    if is_embedded && entry.file_type == FileType::Directory {
                        found.insert(entry.ino());
                    }
                }
            }
        }
        found
    }
}

/// The directories that need a name so that each one can be reached: those that no other contains, and one of
/// each loop, which old sectors can form.
pub(super) fn tops(children: &BTreeMap<InodeNo, BTreeSet<InodeNo>>) -> Vec<InodeNo> {
    let contained: BTreeSet<InodeNo> = children.values().flatten().copied().collect();
    let (inner, mut tops): (Vec<InodeNo>, Vec<InodeNo>) =
        children.keys().partition(|ino| contained.contains(ino));
    let mut reached = BTreeSet::new();
    let reach = |from: InodeNo, reached: &mut BTreeSet<InodeNo>| {
        let mut next = vec![from];
        while let Some(ino) = next.pop() {
            if reached.insert(ino) {
                next.extend(children.get(&ino).into_iter().flatten());
            }
        }
    };
    for top in &tops {
        reach(*top, &mut reached);
    }
    for ino in inner {
        if !reached.contains(&ino) {
            tops.push(ino);
            reach(ino, &mut reached);
        }
    }
    tops
}
