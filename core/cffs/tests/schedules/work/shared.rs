//! Work in directories in which another thread may be faster. Each file there is overwritten as a whole with
//! one byte value.

use cffs::error::{Error, Result};
use cffs::lock::schedule::random;
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewKind, RenameMode, Volume, XattrMode};

use super::{ATTRIBUTE_BYTES, Work, name, name_of, new, pick};
use crate::files::{allow_races, is_uniform};
use crate::volumes::Start;

/// The number of names in shared directories: few, so that threads meet.
const SHARED_NAMES: u64 = 3;
/// The size of files that several threads overwrite as a whole.
const SHARED_BYTES: usize = 9000;

/// Changes a shared directory.
pub fn change(work: Work, volume: &Volume, start: &Start) {
    let (shared, other_dir) = (pick(&start.shared), pick(&start.shared));
    let name = || name_of(random(SHARED_NAMES));
    let (name, other) = (name(), name());
    let fill = random(200) as u8 + 1;
    let done = match work.random(11, 2) {
        0 | 1 => volume.make(&Caller::ROOT, shared, &name, &new(NewKind::Regular)).map(|made| {
            overwrite(volume, made.ino, fill);
            volume.release(made.ino, 1);
        }),
        2 => volume.unlink(&Caller::ROOT, shared, &name),
        3 | 4 => {
            let mode = pick(&[RenameMode::Replace, RenameMode::Exchange]);
            let renamed = volume.rename(&Caller::ROOT, shared, &name, other_dir, &other, mode);
            // A file that was found stays valid while its name is changed.
            assert!(!matches!(renamed, Err(Error::Stale)), "a file that was found is gone");
            renamed.map(drop)
        }
        5 => volume.lookup(shared, &name).and_then(|found| {
            let linked = volume.link(found.ino, other_dir, &other);
            let linked = linked.map(|linked| volume.release(linked.ino, 1));
            volume.release(found.ino, 1);
            linked
        }),
        6 => volume.lookup(shared, &name).map(|found| {
            let value = vec![fill; pick(&ATTRIBUTE_BYTES)];
            allow_races(volume.set_xattr(
                &Caller::ROOT,
                found.ino,
                b"user.shared",
                &value,
                XattrMode::Any,
            ));
            overwrite(volume, found.ino, fill);
            volume.release(found.ino, 1);
        }),
        7 => look(volume, shared, start.is_full),
        10.. => copy(volume, (shared, &name), (other_dir, &other)),
        _ => volume.lookup(shared, &name).map(|found| volume.release(found.ino, 1)),
    };
    allow_races(done);
}

fn overwrite(volume: &Volume, ino: InodeNo, fill: u8) {
    allow_races(volume.write(&Caller::ROOT, ino, 0, &[fill; SHARED_BYTES]));
}

/// Copies a shared file to another one. Both are read and written as a whole.
fn copy(volume: &Volume, from: (InodeNo, &[u8]), to: (InodeNo, &[u8])) -> Result<()> {
    let source = volume.lookup(from.0, from.1)?.ino;
    if let Some(target) = allow_races(volume.lookup(to.0, to.1)) {
        if target.ino != source {
            let (source, target) = ((source, 0), (target.ino, 0));
            allow_races(volume.copy(&Caller::ROOT, source, target, u64::MAX));
        }
        volume.release(target.ino, 1);
    }
    volume.release(source, 1);
    Ok(())
}

/// Looks at all files of a shared directory. On a full volume, a file may have been written in part.
fn look(volume: &Volume, shared: InodeNo, is_full: bool) -> Result<()> {
    let mut seen = Vec::new();
    volume.read_dir(shared, 0, true, &mut |entry| {
        seen.push(entry.ino);
        true
    })?;
    for ino in seen {
        let mut bytes = [0; SHARED_BYTES + 1];
        if let Some(len) = allow_races(volume.read(ino, 0, &mut bytes))
            && !is_full
        {
            assert!(len == 0 || len == SHARED_BYTES, "{len} bytes of a file that is written whole");
            assert!(is_uniform(&bytes[..len]), "contents of two writes");
        }
        if let Some(value) = allow_races(volume.xattr(ino, b"user.shared")) {
            assert!(is_uniform(&value), "an attribute of two calls");
        }
        volume.release(ino, 1);
    }
    Ok(())
}

/// Looks at a file in a directory that another thread may change.
pub fn look_at_foreign(volume: &Volume, dir: InodeNo) {
    if let Some(found) = allow_races(volume.lookup(dir, &name())) {
        // The reference keeps the file.
        volume.read(found.ino, 0, &mut [0; SHARED_BYTES]).expect("read");
        let names = volume.xattr_names(found.ino).expect("names of attributes");
        for name in names {
            allow_races(volume.xattr(found.ino, &name));
        }
        volume.release(found.ino, 1);
    }
}
