//! Accounts of quotas, compared with a walk.

use std::collections::BTreeSet;

use cffs::error::Result;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::{Amount, Attr, Quotas, Volume};

/// The files in and below a directory, and their bytes, by a walk.
pub fn counted(volume: &Volume, dir: InodeNo) -> Result<Amount> {
    let mut seen = BTreeSet::new();
    let mut used = Amount::default();
    let mut pending = vec![dir];
    while let Some(dir) = pending.pop() {
        let attr = volume.attr(dir)?;
        used = Amount { bytes: used.bytes + st_blocks(&attr), files: used.files + 1 };
        let mut found = Vec::new();
        volume.read_dir(dir, 0, false, &mut |entry| {
            found.push((entry.ino, entry.file_type));
            true
        })?;
        for (ino, file_type) in found {
            if file_type == FileType::Directory {
                pending.push(ino);
            } else if seen.insert(ino) {
                let bytes = used.bytes + st_blocks(&volume.attr(ino)?);
                used = Amount { bytes, files: used.files + 1 };
            }
        }
    }
    Ok(used)
}

/// The bytes of `st_blocks`.
fn st_blocks(attr: &Attr) -> u64 {
    attr.allocated_bytes.next_multiple_of(512)
}

/// Fails if an account is not the count of its tree.
pub fn check(volume: &Volume) -> std::result::Result<(), String> {
    for quota in Quotas::of(volume).list().map_err(|error| error.to_string())? {
        let counted = counted(volume, quota.dir).map_err(|error| error.to_string())?;
        if quota.used != counted {
            let path = quota.path.escape_ascii();
            return Err(format!("the account of {path} has {:?}, not {counted:?}", quota.used));
        }
    }
    Ok(())
}
