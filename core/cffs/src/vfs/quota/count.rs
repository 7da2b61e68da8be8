//! Counting a tree, by a walk of its directories.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::charge::note_account;
use super::members::{ANCESTORS_MAX, Accounts};
use crate::error::{Corruption, Error, Result};
use crate::format::inode::FileType;
use crate::format::sector::{Body, Sector};
use crate::inode::{Account, InodeCache, Vnode, VnodeGuard};
use crate::namespace::{Namespace, Visited, read_dir};
use crate::units::{Container, InodeNo, SectorIndex};

/// A longer path is shown without its beginning.
const PATH_BYTES_MAX: usize = 4096;

/// A count of a tree. The gate is held exclusively, or the volume does not change.
pub(super) struct Counting<'a> {
    names: &'a Namespace,
    accounts: &'a Accounts,
    account: &'a Arc<Account>,
    may_change: bool,
    is_lenient: bool,
    /// Files with several names: how many were found, and one of them.
    linked: HashMap<InodeNo, (u32, Vec<u8>)>,
    /// Directories to be counted: by their numbers, since vnodes in use stay in memory. A reader keeps the
    /// vnodes of directories as well: the locator table on the device may not have them yet.
    pending: Vec<(InodeNo, Option<Arc<Vnode>>)>,
    /// Files of the external table that were found.
    externals: HashSet<InodeNo>,
    /// Whether a part could not be read.
    is_partial: bool,
}

/// The result of a count.
pub(super) struct Counted {
    /// Files of the external table in the tree.
    pub externals: HashSet<InodeNo>,
    /// Whether a part of the tree could not be read, and is not counted.
    pub is_partial: bool,
}

impl<'a> Counting<'a> {
    /// A count that is added to an account, in which nothing is in use yet.
    pub fn new(
        names: &'a Namespace,
        accounts: &'a Accounts,
        account: &'a Arc<Account>,
    ) -> Counting<'a> {
        Counting {
            names,
            accounts,
            account,
            may_change: true,
            is_lenient: false,
            linked: HashMap::new(),
            pending: Vec::new(),
            externals: HashSet::new(),
            is_partial: false,
        }
    }

    /// Changes no inode.
    pub fn read_only(self) -> Counting<'a> {
        Counting { may_change: false, ..self }
    }

    /// Leaves out what cannot be read, and says so in the log.
    pub fn lenient(self) -> Counting<'a> {
        Counting { is_lenient: true, ..self }
    }

    /// Counts the tree. Fails if a file in it has a name outside, if this is to be checked.
    pub fn run(mut self, top: &Arc<Vnode>, checks_names: bool) -> Result<Counted> {
        self.pending.push((top.ino, Some(top.clone())));
        let mut seen = HashSet::new();
        while let Some((ino, vnode)) = self.pending.pop() {
            if seen.insert(ino) {
                let counted = match vnode {
                    Some(dir) => self.count_dir(&dir),
                    None => self.names.inodes.get(ino).and_then(|dir| self.count_dir(&dir)),
                };
                self.leave_out(ino, counted)?;
            }
        }
        if checks_names {
            self.check_names()?;
        }
        Ok(Counted { externals: self.externals, is_partial: self.is_partial })
    }

    /// Counts a directory and the files in it.
    fn count_dir(&mut self, dir: &Arc<Vnode>) -> Result<()> {
        self.count(dir);
        let state = dir.state.read();
        let names = self.names;
        read_dir(&names.inodes, &state, 0, &mut |visited| {
            let done = self.visit(dir, visited);
            self.leave_out(dir.ino, done).map(|()| true)
        })
    }

    /// Ignores an error if the count is lenient.
    fn leave_out(&mut self, dir: InodeNo, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if self.is_lenient => {
                tracing::warn!(dir = dir.0, "a part of the tree is not counted: {error}");
                self.is_partial = true;
                Ok(())
            }
            done => done,
        }
    }

    fn visit(&mut self, dir: &Arc<Vnode>, visited: &Visited<'_>) -> Result<()> {
        let vnode = self.names.vnode_visited(visited)?;
        if vnode.state.read().inode.file_type != visited.file_type {
            // A directory must not be given another parent.
            return Err(Corruption::EntryType { dir: dir.ino, ino: vnode.ino }.into());
        }
        if visited.file_type == FileType::Directory {
            if self.accounts.at(vnode.ino).is_none() {
                let ino = vnode.ino;
                self.pending.push((ino, (!self.may_change).then_some(vnode)));
            }
            return Ok(());
        }
        if matches!(visited.body, Body::Reference { .. }) {
            self.externals.insert(vnode.ino);
        }
        if vnode.state.read().inode.nlink > 1 {
            let found = self.linked.entry(vnode.ino).or_insert((0, visited.name.to_vec()));
            found.0 += 1;
            if found.0 > 1 {
                return Ok(());
            }
        }
        if self.may_change && vnode.state.read().inode.parent != dir.ino {
            // The directory that the inode records may have been deleted, or a crash separated the inode from
            // its name.
            let mut file = VnodeGuard::new(&vnode);
            file.inode.parent = dir.ino;
            self.names.inodes.mark_dirty(&mut file);
        }
        self.count(&vnode);
        Ok(())
    }

    fn count(&mut self, vnode: &Arc<Vnode>) {
        let mut file = vnode.state.write();
        let bytes = file.charge(&self.names.inodes.layout);
        file.quota.charged = Some(bytes);
        note_account(self.account, &mut file);
        self.account.add(bytes as i64, 1);
    }

    fn check_names(&self) -> Result<()> {
        for (ino, (found, name)) in &self.linked {
            let nlink = self.names.inodes.get(*ino)?.state.read().inode.nlink;
            if *found != nlink {
                return Err(Error::Unsupported(format!(
                    "{} (inode {ino}) has {nlink} names, of which {found} in the directory; all names of a \
                     file must have the same quota (cffs path lists them)",
                    name.escape_ascii()
                )));
            }
        }
        Ok(())
    }
}

/// Corrects the parents of files that counts of the trees of `counted` did not find: a name that a file lost
/// while its directory had no quota leaves it with a parent in the tree, or with a deleted one. `found`: the
/// files of the external table in the trees. Others have one name, in the directory that holds them.
pub(super) fn correct_parents(
    names: &Namespace,
    accounts: &Accounts,
    counted: &[Arc<Account>],
    found: &HashSet<InodeNo>,
) -> Result<()> {
    let inodes = &names.inodes;
    let table = inodes.system(InodeNo::EXTERNAL)?;
    let sectors = inodes.containers().sector_count(&table.state.read());
    let mut answers = HashMap::new();
    for sector in (0..sectors).map(SectorIndex) {
        // The lock of the table comes after those of files.
        let image = inodes.containers().sector(&table.state.read(), sector)?;
        for (ino, parent) in externals_of(inodes, &image.get()) {
            if found.contains(&ino) {
                continue;
            }
            let is_wrong = match answers.get(&parent) {
                Some(known) => *known,
                None => {
                    let answer = is_wrong_parent(inodes, accounts, counted, parent)?;
                    answers.insert(parent, answer);
                    answer
                }
            };
            if is_wrong {
                give_root_as_parent(inodes, ino)?;
            }
        }
    }
    Ok(())
}

fn give_root_as_parent(inodes: &InodeCache, ino: InodeNo) -> Result<()> {
    let vnode = match inodes.get(ino) {
        // The entry of a removed file stays until the epoch ends.
        Err(Error::Stale) => return Ok(()),
        vnode => vnode?,
    };
    let mut file = VnodeGuard::new(&vnode);
    if file.container.is_some_and(|place| place.file == InodeNo::EXTERNAL) {
        file.inode.parent = InodeNo::ROOT;
        inodes.mark_dirty(&mut file);
    }
    Ok(())
}

/// The files with names in a sector of the external table, and their parents.
fn externals_of(inodes: &InodeCache, sector: &Sector<'_>) -> Vec<(InodeNo, InodeNo)> {
    let mut listed = Vec::new();
    for entry in sector.entries().filter(|entry| entry.file_type != FileType::Directory) {
        let Body::Embedded(record) = &entry.body else { continue };
        // The inode in memory is newer.
        let (nlink, parent) = match inodes.peek(entry.ino()) {
            Some(vnode) => {
                let state = vnode.state.read();
                (state.inode.nlink, state.inode.parent)
            }
            None => (record.inode.nlink.get(), InodeNo(record.inode.parent.get())),
        };
        if nlink > 0 {
            listed.push((entry.ino(), parent));
        }
    }
    listed
}

fn is_wrong_parent(
    inodes: &InodeCache,
    accounts: &Accounts,
    counted: &[Arc<Account>],
    parent: InodeNo,
) -> Result<bool> {
    let dir = match inodes.get(parent) {
        Ok(dir) => dir,
        Err(Error::Stale) => return Ok(true),
        Err(error) => return Err(error),
    };
    if !dir.state.read().inode.is_dir() {
        return Ok(true);
    }
    let account = accounts.of_dir(inodes, &dir)?;
    Ok(account.is_some_and(|account| counted.iter().any(|own| Arc::ptr_eq(own, &account))))
}

/// Whether a directory is `top` or is below it.
pub(super) fn is_within(inodes: &InodeCache, dir: InodeNo, top: InodeNo) -> Result<bool> {
    let mut at = dir;
    for _ in 0..ANCESTORS_MAX {
        if at == top {
            return Ok(true);
        }
        if at == InodeNo::ROOT {
            return Ok(false);
        }
        at = inodes.get(at)?.state.read().inode.parent;
    }
    Err(Corruption::Loop { ino: dir }.into())
}

/// The path of a directory, without the first slash. `...` stands for the beginning of a long one.
pub(super) fn path_of(inodes: &InodeCache, dir: InodeNo) -> Result<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let (mut at, mut bytes) = (dir, 0);
    while at != InodeNo::ROOT {
        if bytes > PATH_BYTES_MAX {
            names.push(b"...".to_vec());
            break;
        }
        let (parent, place) = {
            let vnode = inodes.get(at)?;
            let state = vnode.state.read();
            (state.inode.parent, state.container)
        };
        let above = inodes.get(parent)?;
        let name = name_in(inodes, &above, at, place)?.ok_or(Error::NotFound)?;
        bytes += name.len() + 1;
        names.push(name);
        at = parent;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

/// The name of an inode in a directory. An inode that is embedded there is searched only in its sector.
fn name_in(
    inodes: &InodeCache,
    dir: &Arc<Vnode>,
    ino: InodeNo,
    place: Option<Container>,
) -> Result<Option<Vec<u8>>> {
    let state = dir.state.read();
    if let Some(Container { file, sector }) = place
        && file == dir.ino
        && sector.0 < inodes.containers().sector_count(&state)
    {
        let image = inodes.containers().sector(&state, sector)?;
        let found = image.get().find_inode(ino).map(|entry| entry.name.to_vec());
        return Ok(found);
    }
    let mut name = None;
    read_dir(inodes, &state, 0, &mut |visited| {
        if visited.ino == ino {
            name = Some(visited.name.to_vec());
        }
        Ok(name.is_none())
    })?;
    Ok(name)
}
