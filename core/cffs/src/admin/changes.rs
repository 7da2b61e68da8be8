//! Changes since a mark: a walk that enters only the directories below which something changed, by the
//! counts of marks that changes are stamped with (`epoch/stamping.rs`).
//!
//! An inode of the external table has no known names. If one of these changed, the walk enters all
//! directories, and still lists only what changed. After a crash or a repair it enters and lists all
//! directories, and lists the files that changed.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::epoch::EpochWriter;
use crate::error::{Error, Result};
use crate::format::inode::{FileType, Stamps};
use crate::format::sector::{Body, Entry};
use crate::format::superblock::State;
use crate::inode::{InodeCache, Vnode, VnodeState};
use crate::runs;
use crate::units::{BlockNo, Class, Container, FileBlock, InodeNo, SectorIndex};

/// The longest path by which a program can open a file, in bytes. A longer one is in the list for everything
/// below it, so that the lengths of all paths together grow no faster than their number.
pub const CHANGED_PATH_BYTES_MAX: usize = 4095;
/// How much of a directory is read at a time.
const FETCH_BYTES: u32 = 256 << 10;
/// More directories than this above one are a loop.
const ANCESTORS_MAX: usize = 1 << 20;

/// Something that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The path below the directory that was asked about; empty for that directory itself. One of more than
    /// [`CHANGED_PATH_BYTES_MAX`] bytes stands for everything below it.
    pub path: &'a [u8],
    /// The type of the file. Of a directory, the attributes changed, or names were added or removed; or it is
    /// in a directory that was renamed.
    pub file_type: FileType,
}

/// A walk of what changed since a mark.
pub(crate) struct Changes<'a> {
    writer: &'a EpochWriter,
    inodes: &'a InodeCache,
    /// The count of the mark.
    since: u32,
    /// The inodes of the external table that changed, and whether they are directories that were renamed.
    externals: HashMap<InodeNo, bool>,
    /// Whether directories are entered whose counts say that nothing changed below them.
    enters_all: bool,
    /// Whether all directories are listed: after a crash, a directory may have lost a name without its stamp.
    lists_directories: bool,
    seen: HashSet<InodeNo>,
}

/// A directory in which the walk is.
struct Level {
    dir: Arc<Vnode>,
    /// The next sector, and the rest of the entries of the one before.
    sector: SectorIndex,
    entries: std::vec::IntoIter<Item>,
    /// The length of the directory's path.
    path_len: usize,
    /// Whether everything in it is listed, since it was renamed, or a directory above it.
    is_whole: bool,
}

/// An entry to be listed or entered.
struct Item {
    name: Vec<u8>,
    file_type: FileType,
    is_listed: bool,
    enters: Option<Enters>,
}

/// A directory to be entered.
struct Enters {
    dir: Option<Arc<Vnode>>,
    ino: InodeNo,
    is_whole: bool,
}

impl<'a> Changes<'a> {
    /// A walk of what changed since the mark with this count.
    pub(crate) fn new(writer: &'a EpochWriter, since: u32) -> Changes<'a> {
        Changes {
            writer,
            inodes: &writer.inodes,
            since,
            externals: HashMap::new(),
            enters_all: false,
            lists_directories: false,
            seen: HashSet::new(),
        }
    }

    /// Passes each change in and below a directory to `visit`, until that ends the walk.
    pub(crate) fn run(
        mut self,
        top: InodeNo,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let superblock = self.writer.superblock.get();
        let is_unclean = self.writer.options.read_only && superblock.state != State::Clean;
        self.enters_all =
            is_unclean || superblock.damage.is_some() || self.since <= superblock.marks_walked;
        self.lists_directories = self.enters_all;
        self.commit()?;
        self.scan_externals()?;
        // An inode that has returned to its directory during the scan is found there now.
        self.commit()?;
        let top = self.writer.vnode(top)?;
        if !top.state.read().inode.is_dir() {
            return Err(Error::NotDirectory);
        }
        let is_whole = self.is_below_renamed(&top)?;
        let is_listed = is_whole
            || self.lists_directories
            || top.state.read().inode.stamps.changed >= self.since;
        let own = Change { path: b"", file_type: FileType::Directory };
        if (is_listed || self.externals.contains_key(&top.ino)) && visit(&own).is_break() {
            return Ok(());
        }
        self.walk(top, is_whole, visit)
    }

    fn commit(&self) -> Result<()> {
        if self.writer.options.read_only { Ok(()) } else { self.writer.commit() }
    }

    fn walk(
        &mut self,
        top: Arc<Vnode>,
        is_whole: bool,
        visit: &mut dyn FnMut(&Change<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut path = Vec::new();
        let mut levels = Vec::new();
        self.enter(top, 0, is_whole, &mut levels);
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_len);
            let Some(item) = level.entries.next() else {
                match self.next_sector(level)? {
                    Some(entries) => level.entries = entries.into_iter(),
                    None => drop(levels.pop()),
                }
                continue;
            };
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&item.name);
            let is_too_long = path.len() > CHANGED_PATH_BYTES_MAX;
            let change = Change { path: &path, file_type: item.file_type };
            if (item.is_listed || is_too_long) && visit(&change).is_break() {
                return Ok(());
            }
            if let Some(Enters { dir, ino, is_whole }) = item.enters.filter(|_| !is_too_long) {
                let dir = match dir.map_or_else(|| self.writer.vnode(ino), Ok) {
                    Ok(dir) => dir,
                    // It was removed meanwhile.
                    Err(Error::Stale) => continue,
                    Err(error) => return Err(error),
                };
                self.enter(dir, path.len(), is_whole, &mut levels);
            }
        }
        Ok(())
    }

    /// Enters a directory, unless the walk has been there: it moved meanwhile, or has two names on a damaged
    /// volume.
    fn enter(&mut self, dir: Arc<Vnode>, path_len: usize, is_whole: bool, levels: &mut Vec<Level>) {
        if dir.state.read().inode.is_dir() && self.seen.insert(dir.ino) {
            let entries = Vec::new().into_iter();
            levels.push(Level { dir, sector: SectorIndex(0), entries, path_len, is_whole });
        }
    }

    /// The entries of interest in the next sector of a directory; `None` after the last.
    fn next_sector(&self, level: &mut Level) -> Result<Option<Vec<Item>>> {
        let state = level.dir.state.read();
        if level.sector.0 >= self.inodes.containers().sector_count(&state) {
            return Ok(None);
        }
        self.fetch(&state, level.sector);
        let image =
            self.writer.health.noted(self.inodes.containers().sector(&state, level.sector))?;
        let place = Container { file: level.dir.ino, sector: level.sector };
        level.sector.0 += 1;
        let mut items = Vec::new();
        for entry in image.get().entries() {
            items.extend(self.item(&state, &entry, place, level.is_whole)?);
        }
        Ok(Some(items))
    }

    /// Reads only the next blocks of a directory, not their neighbours. Few directories are entered, and the
    /// cache would read most of the volume's directories around them.
    fn fetch(&self, dir: &VnodeState, sector: SectorIndex) {
        let InodeCache { layout, cache, .. } = self.inodes;
        let window = FETCH_BYTES / layout.sector_bytes;
        if self.enters_all || !sector.0.is_multiple_of(window) {
            return;
        }
        let Some(map) = dir.inode.map() else { return };
        let first = layout.file_block(u64::from(sector.0) * u64::from(layout.sector_bytes));
        let end = layout.file_block_from(dir.inode.size);
        let end = end.0.min(first.0 + u64::from(FETCH_BYTES / layout.block_bytes));
        let positions = (first.0..end).map(FileBlock);
        let positions = positions.filter(|position| dir.pages.get(*position).is_none());
        let blocks =
            positions.filter_map(|position| map.block_at(position, layout.block_fragments()));
        let is_missing = |block: &BlockNo| block.0 < layout.blocks && !cache.claims(*block);
        let mut missing: Vec<BlockNo> = blocks.filter(is_missing).collect();
        missing.sort_unstable();
        missing.dedup();
        let mut runs = Vec::new();
        for BlockNo(number) in missing {
            runs::append(&mut runs, number..number + 1, 0);
        }
        cache.prefetch(runs, Class::Metadata);
    }

    /// The treatment of an entry. The caller has the lock of its directory.
    fn item(
        &self,
        dir: &VnodeState,
        entry: &Entry<'_>,
        place: Container,
        is_whole: bool,
    ) -> Result<Option<Item>> {
        let Entry { name, file_type, .. } = *entry;
        let ino = entry.ino();
        let stamps = match &entry.body {
            Body::Embedded(record) => record.inode.stamps(),
            Body::Reference { .. } => Stamps::default(),
        };
        // Also an inode that was embedded after the scan of the external table.
        let external = self.externals.get(&ino);
        let is_directory = file_type == FileType::Directory;
        let is_listed = is_whole
            || self.lists_directories && is_directory
            || stamps.changed >= self.since
            || external.is_some();
        let is_whole = is_whole || stamps.renamed >= self.since || external.copied() == Some(true);
        let is_entered = is_whole || self.enters_all || stamps.below >= self.since;
        let mut enters = None;
        if is_directory && is_entered && ino != dir.inode.ino {
            let vnode = match &entry.body {
                Body::Embedded(record) => {
                    Some(self.writer.health.noted(self.inodes.adopt(record, place))?)
                }
                Body::Reference { .. } => None,
            };
            enters = Some(Enters { dir: vnode, ino, is_whole });
        }
        let is_of_interest = is_listed || enters.is_some();
        Ok(is_of_interest.then(|| Item { name: name.to_vec(), file_type, is_listed, enters }))
    }

    /// Finds the inodes of the external table that changed.
    fn scan_externals(&mut self) -> Result<()> {
        let table = self.inodes.system(InodeNo::EXTERNAL)?;
        if table.state.read().inode.stamps.below < self.since && !self.enters_all {
            return Ok(());
        }
        let mut sector = SectorIndex(0);
        loop {
            let state = table.state.read();
            if sector.0 >= self.inodes.containers().sector_count(&state) {
                return Ok(());
            }
            let image =
                self.writer.health.noted(self.inodes.containers().sector(&state, sector))?;
            for entry in image.get().entries() {
                let Body::Embedded(record) = entry.body else { continue };
                let stamps = record.inode.stamps();
                // Directories may refer to it whose stamps do not show this.
                self.enters_all |= stamps.newest() >= self.since;
                if stamps.changed >= self.since {
                    self.externals.insert(entry.ino(), stamps.renamed >= self.since);
                }
            }
            sector.0 += 1;
        }
    }

    /// Whether a directory, or one above it, was renamed.
    fn is_below_renamed(&self, top: &Arc<Vnode>) -> Result<bool> {
        let mut at = top.clone();
        for _ in 0..ANCESTORS_MAX {
            let (stamps, parent) = {
                let state = at.state.read();
                (state.inode.stamps, state.inode.parent)
            };
            if stamps.renamed >= self.since {
                return Ok(true);
            }
            if at.ino == InodeNo::ROOT {
                return Ok(false);
            }
            at = self.writer.vnode(parent)?;
        }
        Ok(false)
    }
}
