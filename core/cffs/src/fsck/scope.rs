//! The scope of a fast check: everything that the intent log lists (FORMAT: intent log).
//!
//! Offers [`Scope`], read from the log of a volume that was in use. Everything outside of it is unchanged
//! since the last checkpoint, and is not read, except for the directories above a listed one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::disk::Disk;
use super::inventory::Found;
use super::lost_writes;
use super::parts::{ListedDirectories, Parts};
use crate::format::intent_log::{self, Position, Record};
use crate::format::{Checksum, Layout, Superblock};
use crate::units::{Container, FragNo, FragRun, InodeNo};

/// The length of one read of the log.
const STEP_BYTES: u32 = 64 << 10;

/// Everything that may have changed since the last checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    pub directories: ListedDirectories,
    /// Inodes without a name that the locator table has.
    pub nameless: HashSet<InodeNo>,
    /// Blocks of the external table.
    pub table: BTreeSet<u32>,
    /// Blocks of the locator table, with the entries that were in use.
    pub locator: BTreeMap<u64, u16>,
    /// Groups, with the number of fragments that were free if the log records it.
    pub groups: BTreeMap<u32, Option<u32>>,
    /// Bitmaps, blocks of the locator table and buckets of indexes may be part old and part new. Recovery
    /// corrects them nevertheless, since the log lists all that changed in them, or removes the index.
    pub settling: bool,
    pub freed: Vec<FragRun>,
    /// Clusters whose references changed, with those of the checkpoint; 0 if the cluster is new, or gone.
    pub clusters: BTreeMap<FragNo, (FragRun, u8)>,
    /// Files whose references to these clusters changed, with the extents that referred to them.
    pub referrers: BTreeMap<(FragNo, InodeNo), u8>,
    /// Names that inodes of changed blocks of the external table had.
    names: HashMap<InodeNo, u32>,
    /// Names that were in changed blocks of directories, by inode.
    references: HashMap<InodeNo, u32>,
    /// The blocks in which these names were.
    reference_blocks: HashSet<(InodeNo, u32)>,
    /// The last epoch before the checkpoint.
    epoch: u64,
    block_sectors: u32,
    /// Evidence that the device lost a part of the log.
    pub lost_writes: Option<String>,
    /// Sectors of the log.
    pub intent_log_sectors: u32,
    /// The last sector with valid records, and their number.
    pub end: (Position, Vec<Record>),
    /// Directories whose sectors are queued, or were read.
    pub entered: HashSet<InodeNo>,
    /// Blocks of the locator table that were read.
    pub locator_blocks: HashMap<u64, Option<Vec<u8>>>,
}

impl Scope {
    /// Reads the log of a volume in use; an error says why it cannot be used.
    pub fn read(disk: &mut Disk<'_>, superblock: &Superblock) -> Result<Scope, &'static str> {
        let scope = Scope::read_records(disk, superblock)?;
        match scope.directories.is_consistent() {
            true => Ok(scope),
            false => Err("the records of a directory in the intent log contradict each other"),
        }
    }

    fn read_records(disk: &mut Disk<'_>, superblock: &Superblock) -> Result<Scope, &'static str> {
        let layout = Layout::new(superblock);
        let mut scope = Scope {
            epoch: superblock.epoch,
            block_sectors: layout.block_sectors(),
            ..Scope::default()
        };
        let start = layout.block_offset(layout.intent_log_half(superblock.generation));
        let checksum = superblock.checksum();
        let mut position = Position { generation: superblock.generation, ..Position::default() };
        scope.end.0 = position;
        // The records of the last epoch count only if all of them arrived.
        let mut pending = Vec::new();
        let bytes = layout.intent_log_half_blocks * layout.block_bytes;
        for at in (0..bytes).step_by(STEP_BYTES as usize) {
            let len = STEP_BYTES.min(bytes - at) as usize;
            let chunk = disk.read(start + u64::from(at), len);
            for sector in chunk.chunks_exact(layout.sector_bytes as usize) {
                let here = position;
                let Some(marks) = intent_log::decode(sector, &mut position, checksum) else {
                    if intent_log::is_torn(sector, position, checksum) {
                        return Err("a sector of the intent log was written in part");
                    }
                    let bytes = layout.sector_bytes as usize;
                    let rest = &chunk[position.sequence as usize * bytes - at as usize..];
                    scope.lost_writes = lost_writes_after(rest, bytes, position, checksum);
                    return Ok(scope);
                };
                if marks.incomplete {
                    return Err("the intent log is incomplete");
                }
                for record in &marks.records {
                    pending.push(*record);
                    if *record == Record::End {
                        pending.drain(..).for_each(|record| scope.add(record));
                    }
                }
                let is_end = |record: &Record| *record == Record::End;
                if let Some(last) = marks.records.iter().rposition(is_end) {
                    scope.end = (here, marks.records[..=last].to_vec());
                }
                scope.intent_log_sectors += 1;
            }
        }
        Ok(scope)
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Directory(_)
            | Record::LargeDirectory { .. }
            | Record::DirectoryBlock { .. }
            | Record::Bucket { .. } => self.directories.add(&record),
            Record::Nameless(ino) => {
                self.nameless.insert(ino);
            }
            Record::Table { position } => {
                self.table.insert(position);
            }
            Record::External { ino, names } => {
                self.names.insert(ino, names);
            }
            Record::Reference { dir, position, ino } => {
                *self.references.entry(ino).or_default() += 1;
                self.reference_blocks.insert((dir, position));
            }
            Record::Locator { position, used } => {
                self.locator.entry(position).or_insert(used);
            }
            Record::Group { cg, free } => {
                self.groups.insert(cg.0, Some(free));
            }
            Record::Settling => self.settling = true,
            Record::Freed(run) => self.freed.push(run),
            Record::Cluster { run, references } => {
                self.clusters.insert(run.start, (run, references));
            }
            Record::Referrer { start, ino, extents } => {
                self.referrers.entry((start, ino)).or_insert(extents);
            }
            Record::End => {}
        }
    }

    /// Whether inodes in the container may have been added or removed.
    pub fn is_listed(&self, place: Container) -> bool {
        let block = place.sector.0 / self.block_sectors;
        match place.file {
            InodeNo::SYSTEM => true,
            InodeNo::EXTERNAL => self.table.contains(&block),
            dir => self.directories.contains_block(dir, block),
        }
    }

    /// The counts of names and of directories among them in the blocks of a directory that recovery does not
    /// read, because they did not change. Both are 0 for a directory that it reads as a whole.
    pub fn unread(&self, dir: InodeNo) -> (u32, u32) {
        self.directories.parts_of(dir).and_then(Parts::unchanged).unwrap_or_default()
    }

    /// The names of an external inode that are not in changed blocks: those that it had, without
    /// those that were there. `recorded` is the inode's own count.
    pub fn names_elsewhere(&self, ino: InodeNo, place: Container, recorded: u32) -> u32 {
        let had = match self.is_listed(place) {
            true => self.names.get(&ino).copied().unwrap_or(0),
            false => recorded,
        };
        had.saturating_sub(self.references.get(&ino).copied().unwrap_or(0))
    }

    /// Whether an inode of the external table had names at the checkpoint.
    pub fn had_names(&self, found: &Found) -> bool {
        !self.is_listed(found.container)
            || self.names.get(&found.ino).is_some_and(|names| *names > 0)
    }

    /// Whether a name is not among [`Scope::names_elsewhere`]: it is in a block that changed.
    pub fn is_counted(&self, place: Container, epoch: u64) -> bool {
        let block = place.sector.0 / self.block_sectors;
        epoch > self.epoch || self.reference_blocks.contains(&(place.file, block))
    }

    /// The epoch of a sector in which recovery changes names: one after the checkpoint, so that another
    /// recovery counts them.
    pub fn epoch_of_change(&self, epoch: u64) -> u64 {
        epoch.max(self.epoch + 1)
    }
}

/// Evidence that the log continued after its present end: a sector that does not follow the end, and lists an
/// epoch after which another one began. Of the sectors of the epoch in flight, any may be missing.
fn lost_writes_after(
    rest: &[u8],
    sector_bytes: usize,
    end: Position,
    checksum: Checksum,
) -> Option<String> {
    let Position { generation, sequence: first, .. } = end;
    (first..).zip(rest.chunks_exact(sector_bytes)).find_map(|(sequence, sector)| {
        let mut position = intent_log::position_of(sector, checksum)?;
        let is_its = (position.generation, position.sequence) == (generation, sequence);
        let marks = intent_log::decode(sector, &mut position, checksum).filter(|_| is_its)?;
        lost_writes::has_followed(&marks.records)
            .then(|| format!("the intent log has sector {sequence}, but not all before it"))
    })
}
