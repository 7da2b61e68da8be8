//! The mark of a volume to which the first publish is not complete.

use std::path::Path;

use anyhow::bail;
use cffs::error::Error;
use cffs::files::Files;
use cffs::units::InodeNo;
use cffs::vfs::{Volume, XattrMode, own_xattr, set_own_xattr};
use cffs_object::{Location, LogDevice};

use crate::image;

/// An attribute of the root directory while the first publish to a volume is not complete: the next one may
/// replace its contents. Its value is the UUID of the volume's objects: the version has the attribute as
/// well, and in a clone of that, it has no meaning.
const FIRST: &[u8] = b"trusted.cffs.publish";

/// Marks a volume without versions as being published to. Fails if it has other contents.
pub fn begin(files: &Files, uuid: &[u8]) -> anyhow::Result<()> {
    let (volume, root) = (files.volume(), InodeNo::ROOT);
    if own_xattr(volume, root, FIRST).is_ok_and(|begun| begun == uuid) {
        return Ok(());
    }
    if !files.read_dir("/")?.is_empty() {
        bail!(
            "the volume has files and no version: a publish replaces the files, and nothing would keep them. \
             Publish to another volume, or keep them as a version first: cffs snapshot create URL@OTHER-NAME"
        );
    }
    Ok(set_own_xattr(volume, root, FIRST, uuid, XattrMode::Any)?)
}

/// Whether the first publish to a volume has begun, and was not completed; false if that is not known.
///
/// # Errors
///
/// The volume itself was not completed.
pub fn is_begun(url: &Path, place: &Location) -> anyhow::Result<bool> {
    let options = cffs_object::OpenOptions { read_only: true, ..image::command_options(false) };
    let device = match LogDevice::open(place, options) {
        Err(error @ cffs_object::Error::Unmade { .. }) => return Err(error.into()),
        Err(_) => return Ok(false),
        Ok(device) => device,
    };
    let uuid = device.uuid();
    let Ok(volume) = image::open_volume(url, device, image::read_only()) else { return Ok(false) };
    let is_begun = own_xattr(&volume, InodeNo::ROOT, FIRST).is_ok_and(|begun| begun == uuid);
    let _ = volume.close();
    Ok(is_begun)
}

/// Removes the mark, if there is one.
pub fn forget(volume: &Volume) -> anyhow::Result<()> {
    match own_xattr(volume, InodeNo::ROOT, FIRST) {
        Err(Error::NoAttribute) => Ok(()),
        found => {
            found?;
            Ok(volume.remove_xattr(InodeNo::ROOT, FIRST)?)
        }
    }
}
