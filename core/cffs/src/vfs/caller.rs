//! The process on whose behalf a volume is changed: [`Caller`].
//!
//! Calls whose outcome depends on the caller take one. The library's own user owns the image and passes
//! [`Caller::ROOT`].

use super::Attr;
use crate::error::{Error, Result};
use crate::inode::VnodeState;

/// The process on whose behalf a volume is changed, as the front end knows it.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Its user. Some users may use the [reserve](crate::format::superblock::Reserve).
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Groups<'a>,
    /// The permissions that it does not give to new files; 0 if the front end has taken them away already.
    pub umask: u32,
    /// Its number, 0 if unknown: a volume can place the files of one process together.
    pub process: u32,
    /// A condition of a change of attributes or names, and of a write. A call whose condition does not hold
    /// changes nothing and fails with [`Unmet`](Error::Unmet).
    pub condition: Option<&'a Condition<'a>>,
}

/// A condition on a file that is about to change, and on the directory in which the change adds or removes a
/// name of it. Before a file is made, the condition is evaluated only for the directory. A rename evaluates
/// it for the old name and then for the file that it replaces.
///
/// It is evaluated with the files locked, so it holds at the moment of the change. It must not call the
/// volume, and may be evaluated more than once. It gets the present attributes, except that `allocated_bytes`
/// is 0: a write would otherwise take time for each changed page of the file.
pub type Condition<'a> = dyn Fn(&Attr, Option<&Attr>) -> bool + 'a;

/// The groups of a caller.
#[derive(Clone, Copy)]
pub enum Groups<'a> {
    /// It may act for every group, as root may.
    All,
    /// These groups.
    Listed(&'a [u32]),
    /// Whether the caller may act for a group, as a member or by privilege. Called only when needed, since a
    /// front end may have to look it up.
    Asked(&'a dyn Fn(u32) -> bool),
}

impl Caller<'_> {
    /// Root, to which nothing is refused.
    pub const ROOT: Caller<'static> =
        Caller { uid: 0, gid: 0, groups: Groups::All, umask: 0, process: 0, condition: None };

    /// Whether it may give a program the rights of a group.
    pub(crate) fn may_act_for(&self, gid: u32) -> bool {
        self.gid == gid
            || match self.groups {
                Groups::All => true,
                Groups::Listed(groups) => groups.contains(&gid),
                Groups::Asked(may_act_for) => may_act_for(gid),
            }
    }

    /// Fails if the condition does not hold for a file and the directory in which its names change.
    pub(super) fn check(&self, file: &VnodeState, dir: Option<&VnodeState>) -> Result<()> {
        let Some(condition) = self.condition else { return Ok(()) };
        let dir = dir.map(Attr::without_allocation);
        let holds = condition(&Attr::without_allocation(file), dir.as_ref());
        if holds { Ok(()) } else { Err(Error::Unmet) }
    }

    /// The condition under which a file loses a name in a directory, or gets one.
    pub(super) fn may_take(&self) -> impl Fn(&VnodeState, &VnodeState) -> Result<()> {
        |dir, file| self.check(file, Some(dir))
    }
}
