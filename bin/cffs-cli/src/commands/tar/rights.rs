//! ACLs in an archive: the records `SCHILY.acl.access` and `SCHILY.acl.default`, which GNU tar, bsdtar and
//! star read.
//!
//! Other programs ignore `SCHILY.xattr.system.posix_acl_access`, so that the owning group gets the
//! permissions of the ACL's mask. Archives of earlier versions of this program contain it, so it is read.

use nix::unistd::{Group, User};
use tar_wire::Entry;
use tar_wire::acl::{self, Acl, Named};
use tar_wire::pax::Record;

/// For each ACL: its extended attribute, and its record in an archive.
const ACLS: [(&[u8], &[u8]); 2] =
    [(ACCESS, acl::ACCESS), (b"system.posix_acl_default", acl::DEFAULT)];
/// The attribute with the access ACL.
const ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attributes that are ACLs.
pub const XATTRS: [&[u8]; 2] = [ACLS[0].0, ACLS[1].0];

pub struct Rights(Vec<(&'static [u8], Acl)>);

/// The ACLs in an entry's records.
pub fn of_entry(entry: &Entry) -> Result<Rights, acl::Malformed> {
    let mut acls = Vec::new();
    for (xattr, key) in ACLS {
        if let Some(text) = entry.record(key) {
            acls.push((xattr, Acl::from_text(text, number_of)?));
        } else if let Some(bytes) = entry.record(&[b"SCHILY.xattr.", xattr].concat()) {
            acls.extend(Acl::from_bytes(bytes).map(|acl| (xattr, acl)));
        }
    }
    Ok(Rights(acls))
}

impl Rights {
    /// Adds the extended attributes, replacing those with the same names.
    pub fn put(&self, xattrs: &mut Vec<Record>) {
        xattrs.retain(|(name, _)| self.0.iter().all(|(xattr, _)| name != xattr));
        xattrs.extend(self.0.iter().map(|(xattr, acl)| (xattr.to_vec(), acl.to_bytes())));
    }

    /// Names in the entries that are unknown on this machine.
    pub fn unknown(&self) -> impl Iterator<Item = &String> {
        self.0.iter().flat_map(|(_, acl)| &acl.unknown)
    }

    /// The mode of a file with its ACLs. The mode in the archive can differ from it: bsdtar writes the
    /// permissions of the owning group, other programs the mask's.
    pub fn mode_with(&self, mode: u32) -> u32 {
        self.access().map_or(mode, |acl| acl.mode_with(mode))
    }

    /// Changes the access ACL as chmod(2) does.
    pub fn set_mode(&mut self, mode: u32) {
        let access = self.0.iter_mut().find(|(xattr, _)| *xattr == ACCESS);
        access.into_iter().for_each(|(_, acl)| acl.set_mode(mode));
    }

    /// The mode of a file without its ACLs.
    pub fn mode_without(&self, mode: u32) -> u32 {
        self.access().map_or(mode, |acl| acl.mode_without(mode))
    }

    fn access(&self) -> Option<&Acl> {
        self.0.iter().find(|(xattr, _)| *xattr == ACCESS).map(|(_, acl)| acl)
    }
}

/// The record of an extended attribute.
pub fn record(name: &[u8], value: Vec<u8>) -> Record {
    let acl = ACLS.iter().find(|(xattr, _)| *xattr == name).and_then(|(_, key)| {
        let text = Acl::from_bytes(&value)?.to_text()?;
        Some((key.to_vec(), text.into_bytes()))
    });
    acl.unwrap_or_else(|| (tar_wire::pax::xattr_key(name), value))
}

/// The mode of a file whose extended attributes are omitted.
pub fn mode_without(mode: u32, xattr: impl Fn(&[u8]) -> Option<Vec<u8>>) -> u32 {
    let acl = xattr(ACCESS).and_then(|bytes| Acl::from_bytes(&bytes));
    acl.map_or(mode, |acl| acl.mode_without(mode))
}

fn number_of(named: Named<'_>) -> Option<u32> {
    match named {
        Named::User(name) => Some(User::from_name(name).ok()??.uid.as_raw()),
        Named::Group(name) => Some(Group::from_name(name).ok()??.gid.as_raw()),
    }
}
