//! Charging changes to accounts.
//!
//! A change that may need space first charges an upper bound, and is refused if that does not fit. Afterwards
//! it settles: the account is corrected to what the file has gained or lost. Both happen under the lock of
//! the file.

use std::ops::Range;
use std::sync::Arc;

use super::members::{Accounts, same};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::format::quota::STAT_BLOCK_BYTES;
use crate::inode::{Account, Amount, Content, InodeCache, Mapping, Vnode, VnodeGuard, VnodeState};
use crate::units::{FileBlock, FileFrag, InodeNo};

/// Bytes of a file that a change will give space.
#[derive(Clone)]
pub(in crate::vfs) enum Growth {
    /// It is not known, or there are none.
    Unknown,
    /// These are written.
    Write(Range<u64>),
    /// The blocks with these are reserved.
    Reserve(Range<u64>),
}

/// The charge of a change of one file, whose lock is held.
pub(in crate::vfs) struct Charging<'a> {
    account: &'a Arc<Account>,
    layout: &'a Layout,
    /// Changed pages outside of these blocks stay as they are.
    scope: Range<FileBlock>,
    before: u64,
    taken: u64,
}

impl<'a> Charging<'a> {
    /// Charges the most that the change may need.
    pub fn begin(
        account: &'a Arc<Account>,
        layout: &'a Layout,
        file: &mut VnodeState,
        growth: &Growth,
    ) -> Result<Charging<'a>> {
        let charged = charged(layout, file);
        let scope = scope_of(layout, file, growth);
        let before = match scope == FileBlock::ALL {
            true => charged,
            false => bytes_in(layout, file, &scope),
        };
        let taken = needed(layout, file, growth);
        account.take(Amount { bytes: taken, files: 0 })?;
        Ok(Charging { account, layout, scope, before, taken })
    }

    /// Charges the space that the file has gained, or returns the space that it has lost.
    pub fn end(self, file: &mut VnodeState) {
        let after = match self.scope == FileBlock::ALL {
            true => file.charge(self.layout),
            false => bytes_in(self.layout, file, &self.scope),
        };
        let gained = after as i64 - self.before as i64;
        self.account.add(gained - self.taken as i64, 0);
        let charged = charged(self.layout, file);
        file.quota.charged = Some(charged.saturating_add_signed(gained));
        note_account(self.account, file);
    }
}

/// The bytes that a file is charged with.
fn charged(layout: &Layout, file: &mut VnodeState) -> u64 {
    let bytes = file.quota.charged.unwrap_or_else(|| file.charge(layout));
    file.quota.charged = Some(bytes);
    bytes
}

/// The blocks whose changed pages a change may affect. A write to a large file examines only its own pages
/// and the page at the file's end.
fn scope_of(layout: &Layout, file: &VnodeState, growth: &Growth) -> Range<FileBlock> {
    let Growth::Write(range) = growth else { return FileBlock::ALL };
    let size = file.inode.size;
    if size <= layout.small_bytes_max() || matches!(file.inode.content, Content::Inline(_)) {
        return FileBlock::ALL;
    }
    let first = layout.file_block(range.start.min(size.saturating_sub(1)));
    first..layout.file_block_from(range.end).max(layout.file_block_from(size.min(range.end)))
}

/// The bytes of the contents, with those of changed pages in some blocks that are not placed yet.
fn bytes_in(layout: &Layout, file: &VnodeState, scope: &Range<FileBlock>) -> u64 {
    let Some(map) = file.inode.map() else { return file.charge(layout) };
    let end = layout.fragments_for(file.inode.size);
    let dirty = file.pages.dirty_in(scope.clone());
    let waiting: u64 = dirty.map(|page| holes(layout, file, page, end)).sum();
    (map.mapped() + waiting) * u64::from(layout.fragment_bytes)
}

/// The fragments of a block, before the end of the file in fragments, that have no place.
fn holes(layout: &Layout, file: &VnodeState, page: FileBlock, end: u64) -> u64 {
    holes_in(layout, file, page..FileBlock(page.0 + 1), end)
}

/// The same for several blocks. The time depends on the number of extents, not of blocks.
fn holes_in(layout: &Layout, file: &VnodeState, pages: Range<FileBlock>, end: u64) -> u64 {
    let start = layout.file_frag(pages.start).0;
    let end = layout.file_frag(pages.end).0.min(end);
    let Some(map) = file.inode.map() else { return end.saturating_sub(start) };
    let (mut at, mut count) = (start, 0);
    while at < end {
        match map.find(FileFrag(at)) {
            Mapping::Mapped { len, .. } | Mapping::InCluster { len, .. } => at += len,
            Mapping::Hole(len) => {
                count += len.min(end - at);
                at = at.saturating_add(len);
            }
        }
    }
    count
}

/// The bytes that a change needs at most.
fn needed(layout: &Layout, file: &VnodeState, growth: &Growth) -> u64 {
    let (range, reserves) = match growth {
        Growth::Unknown => return 0,
        Growth::Write(range) => (range, false),
        Growth::Reserve(range) => (range, true),
    };
    let inode = &file.inode;
    let size = match reserves {
        true => inode.size,
        false => inode.size.max(range.end),
    };
    let (end, old_end) = (layout.fragments_for(size), layout.fragments_for(inode.size));
    let pages = layout.file_block(range.start)..layout.file_block_from(range.end);
    let last = if reserves { u64::MAX } else { end };
    // Changed pages have their charge already.
    let counted = file.pages.dirty_in(pages.clone()).map(|page| holes(layout, file, page, old_end));
    let fragments = holes_in(layout, file, pages.clone(), last);
    let fragments = fragments.saturating_sub(counted.sum());
    let fragment_bytes = u64::from(layout.fragment_bytes);
    let (mut more, mut less) = (0, 0);
    if let Content::Inline(bytes) = &inode.content {
        // The contents move to pages; pages of the range are already counted.
        let own = layout.file_block_from(inode.size).0;
        let outside = (0..own).map(FileBlock).filter(|page| !pages.contains(page));
        more = outside.map(|page| holes(layout, file, page, end)).sum();
        less = (bytes.len() as u64).next_multiple_of(STAT_BLOCK_BYTES);
    } else if size > inode.size {
        // The last page gets longer.
        let last = layout.file_block(inode.size.saturating_sub(1));
        if !pages.contains(&last) && file.pages.is_dirty(last) {
            more = holes(layout, file, last, end) - holes(layout, file, last, old_end);
        }
    }
    ((fragments + more) * fragment_bytes).saturating_sub(less)
}

/// Puts contents of another length into an inode: `put` tells whether they fit there.
pub(in crate::vfs) fn charge_inline(
    account: Option<&Arc<Account>>,
    layout: &Layout,
    file: &mut VnodeGuard<'_>,
    len: usize,
    put: impl FnOnce(&mut VnodeGuard<'_>) -> Result<bool>,
) -> Result<bool> {
    let Some(account) = account else { return put(file) };
    let before = charged(layout, file);
    let taken = (len as u64).next_multiple_of(STAT_BLOCK_BYTES).saturating_sub(before);
    account.take(Amount { bytes: taken, files: 0 })?;
    let done = put(file);
    settle(account, layout, file);
    account.add(-(taken as i64), 0);
    done
}

/// Charges a file with its present space.
fn settle(account: &Arc<Account>, layout: &Layout, file: &mut VnodeState) {
    let (before, after) = (charged(layout, file), file.charge(layout));
    account.add(after as i64 - before as i64, 0);
    file.quota.charged = Some(after);
    note_account(account, file);
}

/// Records the account to which a file is charged. The account of a directory has a version of its own.
pub(super) fn note_account(account: &Arc<Account>, file: &mut VnodeState) {
    if !file.inode.is_dir() {
        file.quota.account = Some(account.clone());
    }
}

impl Accounts {
    /// The account of a directory whose names are about to change.
    pub fn of_changing(
        &self,
        inodes: &InodeCache,
        dir: &Arc<Vnode>,
    ) -> Result<Option<Arc<Account>>> {
        let account = self.of_dir(inodes, dir)?;
        if account.is_some() {
            charged(&inodes.layout, &mut dir.state.write());
        }
        Ok(account)
    }

    /// Charges a directory with the blocks of its names.
    pub fn settle_dir(&self, account: Option<&Arc<Account>>, layout: &Layout, dir: &Arc<Vnode>) {
        if let Some(account) = account {
            settle(account, layout, &mut dir.state.write());
        }
    }

    /// Charges a file that was made, which already counts as one.
    pub fn settle_new(&self, account: &Arc<Account>, layout: &Layout, file: &Arc<Vnode>) {
        settle(account, layout, &mut file.state.write());
    }

    /// After a file lost a name in a directory. Without a name, it stays charged until it is deleted.
    pub fn lost_name(
        &self,
        account: Option<&Arc<Account>>,
        layout: &Layout,
        dir: &Arc<Vnode>,
        vnode: &Arc<Vnode>,
    ) {
        if !self.are_any() {
            return;
        }
        self.settle_dir(account, layout, dir);
        let mut file = vnode.state.write();
        if file.inode.nlink == 0 {
            let own = self.at(vnode.ino);
            file.quota.account = own.or_else(|| account.cloned());
            if file.quota.account.is_some() {
                charged(layout, &mut file);
            }
        } else if file.inode.parent == dir.ino && !file.inode.is_dir() {
            // The directory may be removed before the other names are.
            file.inode.parent = account.map_or(InodeNo::ROOT, |account| account.dir);
        }
        let is_removed = file.inode.nlink == 0 && file.inode.is_dir();
        drop(file);
        if is_removed && self.at(vnode.ino).is_some() {
            self.remove(vnode.ino);
        }
    }

    /// Deletes a file without a name by `destroy`, and returns its charge.
    pub fn deleted(
        &self,
        layout: &Layout,
        file: &mut VnodeGuard<'_>,
        destroy: impl FnOnce(&mut VnodeGuard<'_>) -> Result<()>,
    ) -> Result<()> {
        let account = file.quota.account.take();
        let bytes = account.as_ref().map_or(0, |_| charged(layout, file));
        let done = destroy(file);
        if let Some(account) = account {
            account.add(-(bytes as i64), -1);
            // The thread that made the file may not have settled it yet.
            file.quota.charged = Some(0);
        }
        done
    }

    /// Moves the charge of a file to another account, if it fits there. `None` if it is the same. The gate is
    /// held exclusively.
    pub fn move_charge(
        &self,
        from: &Option<Arc<Account>>,
        to: &Option<Arc<Account>>,
        layout: &Layout,
        file: &Arc<Vnode>,
    ) -> Result<Option<Moving>> {
        if same(from, to) {
            return Ok(None);
        }
        let vnode = file;
        let mut file = vnode.state.write();
        let bytes = match from {
            Some(_) => charged(layout, &mut file),
            None => file.charge(layout),
        };
        if let Some(to) = to {
            to.check_room()?;
            to.take(Amount { bytes, files: 1 })?;
        }
        if let Some(from) = from {
            from.add(-(bytes as i64), -1);
        }
        file.quota.charged = Some(bytes);
        if !file.inode.is_dir() {
            file.quota.account = to.clone();
        }
        Ok(Some(Moving { from: from.clone(), to: to.clone(), file: vnode.clone() }))
    }
}

impl Accounts {
    /// Makes a file in a directory, and charges it.
    pub fn make(
        &self,
        inodes: &InodeCache,
        parent: &Arc<Vnode>,
        make: impl FnOnce() -> Result<Arc<Vnode>>,
    ) -> Result<Arc<Vnode>> {
        let account = self.of_changing(inodes, parent)?;
        account.as_ref().map_or(Ok(()), |account| account.take_file())?;
        let made = make();
        self.settle_dir(account.as_ref(), &inodes.layout, parent);
        match (&made, &account) {
            (_, None) => {}
            (Ok(vnode), Some(account)) => {
                self.settle_new(account, &inodes.layout, vnode);
            }
            (Err(error), Some(account)) => {
                account.add(0, -1);
                account.doubt_after(error);
            }
        }
        made
    }

    /// Gives a file a name in a directory, and moves its charge there if it had none.
    pub fn link(
        &self,
        inodes: &InodeCache,
        vnode: &Arc<Vnode>,
        parent: &Arc<Vnode>,
        link: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !self.are_any() {
            return link();
        }
        let from = self.of_file(inodes, vnode)?;
        let to = self.of_changing(inodes, parent)?;
        {
            let file = vnode.state.read();
            check_border(&from, &to, &file, file.inode.nlink)?;
        }
        to.as_ref().map_or(Ok(()), |to| to.check_room())?;
        let moving = self.move_charge(&from, &to, &inodes.layout, vnode)?;
        let linked = link();
        if let (Err(error), Some(moving)) = (&linked, moving) {
            moving.doubt_after(error);
            moving.undo();
        }
        self.settle_dir(to.as_ref(), &inodes.layout, parent);
        linked
    }

    /// Removes a name of a file in a directory.
    pub fn remove_name(
        &self,
        inodes: &InodeCache,
        parent: &Arc<Vnode>,
        remove: impl FnOnce() -> Result<Arc<Vnode>>,
    ) -> Result<Arc<Vnode>> {
        let account = self.of_changing(inodes, parent)?;
        let removed = remove();
        if let (Err(error), Some(account)) = (&removed, &account) {
            account.doubt_after(error);
        }
        let vnode = removed?;
        self.lost_name(account.as_ref(), &inodes.layout, parent, &vnode);
        Ok(vnode)
    }
}

/// A charge that was moved.
pub(in crate::vfs) struct Moving {
    from: Option<Arc<Account>>,
    to: Option<Arc<Account>>,
    file: Arc<Vnode>,
}

impl Moving {
    /// Notes an error that can leave the move half made.
    pub fn doubt_after(&self, error: &Error) {
        self.from.iter().chain(&self.to).for_each(|account| account.doubt_after(error));
    }

    /// Moves the charge back.
    pub fn undo(self) {
        let mut file = self.file.state.write();
        let bytes = file.quota.charged.unwrap_or(0) as i64;
        if let Some(to) = self.to {
            to.add(-bytes, -1);
        }
        if let Some(from) = &self.from {
            from.add(bytes, 1);
        }
        file.quota.account = self.from;
    }
}

/// Fails if a file that keeps other names must not get one in a directory with this account, since all must
/// have the same. A directory cannot change its account, because everything below it would.
pub(in crate::vfs) fn check_border(
    own: &Option<Arc<Account>>,
    dir: &Option<Arc<Account>>,
    file: &VnodeState,
    kept: u32,
) -> Result<()> {
    let is_bound = file.inode.is_dir() || kept > 0;
    if is_bound && !same(own, dir) { Err(Error::OtherQuota) } else { Ok(()) }
}
