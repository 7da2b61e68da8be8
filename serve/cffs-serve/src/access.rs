//! Access checks for protocols whose requests no kernel has checked.
//!
//! Offers the decision of POSIX.1e: owner, group and others by the mode or, if the file has one, by its
//! access ACL; and the privileges of root and of others with capabilities. The decision depends only on the
//! arguments; [`checks`] looks up the ACL.

use cffs::format::inode::FileType;
use cffs::vfs::types::{Attr, Unprivileged};
use cffs::vfs::{Caller, Condition, Groups};

pub mod checks;
#[cfg(test)]
mod tests;

/// Read the file, or list the directory.
pub const READ: u32 = 4;
/// Write to the file, or change the names of the directory.
pub const WRITE: u32 = 2;
/// Execute the file, or look up names in the directory.
pub const EXECUTE: u32 = 1;

/// The name of the attribute that contains the access ACL.
pub const ACL: &[u8] = b"system.posix_acl_access";

/// The bit of a directory in which only owners may remove names.
pub const STICKY: u32 = 0o1000;
const ANY_EXECUTE: u32 = 0o111;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The user of a request, with groups and privileges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    /// The group, which new files belong to.
    pub gid: u32,
    pub groups: Vec<u32>,
    pub privileges: Privileges,
}

/// The kernel's capabilities that a user has over all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    /// `CAP_DAC_OVERRIDE`: permissions do not matter, except for executing a file without execute bits.
    pub dac_override: bool,
    /// `CAP_DAC_READ_SEARCH`: may read every file and list and search every directory.
    pub dac_read_search: bool,
    /// `CAP_FOWNER`: has the rights of the owner of every file.
    pub fowner: bool,
    /// `CAP_CHOWN`: may give files to other users and groups.
    pub chown: bool,
    /// `CAP_FSETID`: changes keep set-id bits.
    pub fsetid: bool,
    /// `CAP_SETFCAP`: may give capabilities to programs.
    pub setfcap: bool,
}

impl Privileges {
    pub const ALL: Privileges = Privileges {
        dac_override: true,
        dac_read_search: true,
        fowner: true,
        chown: true,
        fsetid: true,
        setfcap: true,
    };

    /// Whether they grant the `wanted` permissions on a file.
    fn grant(self, attr: &Attr, wanted: u32) -> bool {
        let is_dir = attr.file_type == FileType::Directory;
        let readable = if is_dir { READ | EXECUTE } else { READ };
        let has_override = wanted & EXECUTE == 0 || is_dir || attr.permissions & ANY_EXECUTE != 0;
        self.dac_override && has_override || self.dac_read_search && wanted & !readable == 0
    }
}

impl User {
    /// The user of a protocol without capabilities, in which root has all privileges.
    pub fn new(uid: u32, gid: u32, groups: Vec<u32>) -> User {
        let privileges = if uid == 0 { Privileges::ALL } else { Privileges::default() };
        User { uid, gid, groups, privileges }
    }

    /// The user as the caller of a change, with a condition if one is given.
    pub fn caller<'a>(&'a self, condition: Option<&'a Condition<'a>>) -> Caller<'a> {
        let groups = if self.is_root() { Groups::All } else { Groups::Listed(&self.groups) };
        // A request from the network names no process, and its permissions already include the umask.
        Caller { uid: self.uid, gid: self.gid, groups, umask: 0, process: 0, condition }
    }

    /// Whether the user has root's privileges.
    pub fn is_root(&self) -> bool {
        self.uid == 0 && self.privileges == Privileges::ALL
    }

    /// Whether the user is in a group.
    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the user may do what only the file's owner may.
    pub fn owns(&self, attr: &Attr) -> bool {
        self.privileges.fowner || self.uid == attr.uid
    }

    /// The set-id bits that a file loses when the user changes its contents; `None` for a user whose changes
    /// keep them.
    pub fn unprivileged(&self, attr: &Attr) -> Option<Unprivileged> {
        if self.privileges.fsetid {
            return None;
        }
        let is_member = self.is_member(attr.gid);
        Some(if is_member { Unprivileged::Member } else { Unprivileged::Stranger })
    }

    /// Whether the user has all of the `wanted` permissions on a file with this access ACL, if it has one. An
    /// invalid ACL grants nothing.
    pub fn may(&self, attr: &Attr, acl: Option<&[u8]>, wanted: u32) -> bool {
        if self.privileges.grant(attr, wanted) {
            return true;
        }
        let has = |permissions: u32| permissions & wanted == wanted;
        if self.uid == attr.uid {
            return has(attr.permissions >> 6);
        }
        match acl {
            Some(acl) => entries(acl).is_some_and(|acl| self.may_by(&acl, attr.gid, wanted)),
            None if self.is_member(attr.gid) => has(attr.permissions >> 3),
            None => has(attr.permissions),
        }
    }

    fn may_by(&self, acl: &[Ace], owning_group: u32, wanted: u32) -> bool {
        let of = |tag| acl.iter().find(|ace| ace.tag == tag).map(|ace| ace.permissions);
        let mask = of(MASK).unwrap_or(READ | WRITE | EXECUTE);
        let has = |permissions: u32| permissions & wanted == wanted;
        if let Some(named) = acl.iter().find(|ace| ace.tag == USER && ace.id == self.uid) {
            return has(named.permissions & mask);
        }
        let mut is_in_any = false;
        for ace in acl {
            let group = match ace.tag {
                GROUP_OBJ => owning_group,
                GROUP => ace.id,
                _ => continue,
            };
            if self.is_member(group) {
                is_in_any = true;
                if has(ace.permissions & mask) {
                    return true;
                }
            }
        }
        !is_in_any && of(OTHER).is_some_and(has)
    }

    /// The sticky bit's condition for removing a name from a directory.
    pub fn may_take(&self) -> impl Fn(&Attr, Option<&Attr>) -> bool {
        |file, dir| {
            dir.is_none_or(|dir| dir.permissions & STICKY == 0 || self.owns(dir)) || self.owns(file)
        }
    }
}

/// An entry of an ACL.
struct Ace {
    tag: u16,
    permissions: u32,
    id: u32,
}

/// The entries of an ACL in the kernel's form: a version, then eight bytes for each.
fn entries(acl: &[u8]) -> Option<Vec<Ace>> {
    const VERSION: u32 = 2;
    let (version, rest) = acl.split_first_chunk::<4>()?;
    let (entries, left) = rest.as_chunks::<8>();
    if u32::from_le_bytes(*version) != VERSION || !left.is_empty() {
        return None;
    }
    let known = |tag| matches!(tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER);
    let entry = |e: &[u8; 8]| {
        let tag = u16::from_le_bytes([e[0], e[1]]);
        let permissions = u16::from_le_bytes([e[2], e[3]]).into();
        let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
        known(tag).then_some(Ace { tag, permissions, id })
    };
    entries.iter().map(entry).collect()
}
