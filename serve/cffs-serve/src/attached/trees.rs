//! The walks of a program that is attached. The server keeps the position of each walk, so the program
//! receives everything below a directory without a round trip for each directory.

use std::collections::HashMap;
use std::time::Instant;

use cffs::error::{Error, Result};
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::types::Access;
use cffs::vfs::{DirEntry, Volume};
use cffs::wire::{ENTRY_BYTES, Fault, Found, HANDLES_MAX, Handle, LISTED_BYTES, Step};

use crate::access::{EXECUTE, READ, User, checks};

/// The most walks of a session at a time.
const WALKS_MAX: usize = 64;

/// The walks of a session.
pub(super) struct Trees<'a> {
    volume: &'a Volume,
    walks: HashMap<Handle, Tree<'a>>,
}

/// A walk. Dropping it releases its references.
struct Tree<'a> {
    volume: &'a Volume,
    /// The directories on the path to the position. Each has a reference to its inode.
    levels: Vec<Level>,
}

struct Level {
    dir: InodeNo,
    /// The cookie of the last entry that was found.
    cookie: u64,
}

/// The steps of an answer.
#[derive(Default)]
struct Steps {
    steps: Vec<Step>,
    bytes: usize,
}

impl<'a> Trees<'a> {
    pub fn new(volume: &'a Volume) -> Trees<'a> {
        Trees { volume, walks: HashMap::new() }
    }

    /// Begins a walk below a directory. A walk that has this handle ends.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if there are too many walks, or they have too many directories open.
    pub fn begin(&mut self, walk: Handle, dir: InodeNo) -> Result<()> {
        self.end(walk);
        if self.walks.len() >= WALKS_MAX {
            let text = format!("an attached program makes at most {WALKS_MAX} walks at a time");
            return Err(Error::InUse(text));
        }
        self.check_room(1)?;
        let mut tree = Tree { volume: self.volume, levels: Vec::new() };
        // The walk gets a reference of its own.
        tree.enter(self.volume.find(dir)?.ino);
        self.walks.insert(walk, tree);
        Ok(())
    }

    /// The next steps of a walk, as many as fit into an answer and are found in time, and whether these are
    /// the last ones. After the last ones, the walk no longer exists.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if there is no such walk.
    pub fn next(&mut self, walk: Handle, user: &User, until: Instant) -> Result<(Vec<Step>, bool)> {
        let mut tree = self.walks.remove(&walk).ok_or(Error::Stale)?;
        let mut steps = Steps::default();
        while !tree.levels.is_empty() && steps.bytes < LISTED_BYTES {
            let room = self.check_room(tree.levels.len() + 1);
            if let Err(error) = tree.step(user, room, &mut steps) {
                steps.add(tree.levels.len() - 1, Found::Fault(Fault::from(&error)));
                tree.leave();
            }
            if Instant::now() >= until && !steps.steps.is_empty() {
                break;
            }
        }
        let is_end = tree.levels.is_empty();
        if !is_end {
            self.walks.insert(walk, tree);
        }
        Ok((steps.steps, is_end))
    }

    /// Ends a walk, if it has not ended.
    pub fn end(&mut self, walk: Handle) {
        self.walks.remove(&walk);
    }

    /// Checks whether one more walk may have this many directories open.
    fn check_room(&self, levels: usize) -> Result<()> {
        let open: usize = self.walks.values().map(|tree| tree.levels.len()).sum();
        if open + levels <= HANDLES_MAX {
            return Ok(());
        }
        let text =
            format!("the walks of an attached program have at most {HANDLES_MAX} directories open");
        Err(Error::InUse(text))
    }
}

impl Tree<'_> {
    /// Opens a directory, on which the caller passes a reference.
    fn enter(&mut self, dir: InodeNo) {
        self.levels.push(Level { dir, cookie: 0 });
    }

    /// Leaves the directory that was opened last.
    fn leave(&mut self) {
        if let Some(Level { dir, .. }) = self.levels.pop() {
            self.volume.release(dir, 1);
        }
    }

    /// Finds entries of the directory that was opened last, up to its next directory, which is opened.
    ///
    /// # Errors
    ///
    /// The program may not list the directory, or the next part of it cannot be read. `room` fails if no more
    /// directories can be opened.
    fn step(&mut self, user: &User, room: Result<()>, steps: &mut Steps) -> Result<()> {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        checks::check(self.volume, user, &self.volume.attr(level.dir)?, READ | EXECUTE)?;
        let Level { dir, cookie } = *level;
        let (mut found, mut entered) = (Vec::new(), None);
        let (mut is_end, mut is_full) = (true, false);
        let mut visit = |entry: &DirEntry<'_>| {
            is_end = !is_full && entered.is_none();
            if let (true, Some(attr)) = (is_end, entry.attr) {
                level.cookie = entry.cookie;
                steps.add(depth, Found::Entry { name: entry.name.to_vec(), attr });
                is_full = steps.bytes >= LISTED_BYTES;
                found.push(attr.ino);
                entered = (attr.file_type == FileType::Directory).then_some(attr.ino);
            }
            is_end
        };
        let all = |_: &DirEntry<'_>| true;
        let listed =
            self.volume.read_dir_plus(dir, cookie, Some(&all), Access::Unnoted, &mut visit);
        // The reference on the directory that was entered is kept.
        let is_empty = found.is_empty();
        found
            .into_iter()
            .filter(|ino| Some(*ino) != entered)
            .for_each(|ino| self.volume.release(ino, 1));
        match (entered, listed) {
            (Some(dir), _) => match room {
                Ok(()) => self.enter(dir),
                Err(error) => {
                    self.volume.release(dir, 1);
                    steps.add(depth, Found::Fault(Fault::from(&error)));
                }
            },
            // A damaged part does not hide the entries before it.
            (None, Err(error)) if is_empty => return Err(error),
            (None, Ok(())) if is_end => self.leave(),
            (None, _) => {}
        }
        Ok(())
    }
}

impl Drop for Tree<'_> {
    fn drop(&mut self) {
        self.levels.iter().for_each(|level| self.volume.release(level.dir, 1));
    }
}

impl Steps {
    fn add(&mut self, depth: usize, found: Found) {
        self.bytes += match &found {
            Found::Entry { name, .. } => ENTRY_BYTES + name.len(),
            Found::Fault(fault) => ENTRY_BYTES + fault.bytes(),
        };
        self.steps.push(Step { depth: depth as u32, found });
    }
}
