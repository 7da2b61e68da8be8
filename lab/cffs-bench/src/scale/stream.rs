//! A tree as an archive that is generated while it is read, so that a million files take no space outside of
//! the volume.

use std::io::Write;

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

pub const FILES_PER_DIRECTORY: u64 = 1000;
pub const FILE_BYTES: usize = 1024;

/// The path of a file in the tree.
pub fn path(file: u64) -> String {
    format!("{}/f{file:08}", directory(file / FILES_PER_DIRECTORY))
}

/// The name of a directory of the tree.
pub fn directory(number: u64) -> String {
    format!("d{number:06}")
}

/// The number of directories of a tree.
pub fn directories(files: u64) -> u64 {
    files.div_ceil(FILES_PER_DIRECTORY)
}

/// The contents of a file, different for each file.
pub fn contents(file: u64, buffer: &mut [u8; FILE_BYTES]) {
    for (word, place) in (0..).zip(buffer.as_chunks_mut::<8>().0) {
        *place = (file << 16 | word).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    }
}

/// Writes the archive of a tree.
pub fn write(files: u64, out: impl Write) -> Result<()> {
    let mut archive = Builder::new(out);
    let mut buffer = [0; FILE_BYTES];
    for file in 0..files {
        if file % FILES_PER_DIRECTORY == 0 {
            let name = directory(file / FILES_PER_DIRECTORY);
            append(&mut archive, &name, EntryType::Directory, 0o755, &[])?;
        }
        contents(file, &mut buffer);
        append(&mut archive, &path(file), EntryType::Regular, 0o644, &buffer)?;
    }
    archive.into_inner().context("end the archive")?.flush().context("end the archive")
}

fn append<W: Write>(
    archive: &mut Builder<W>,
    path: &str,
    kind: EntryType,
    mode: u32,
    contents: &[u8],
) -> Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000_000);
    header.set_size(contents.len() as u64);
    archive.append_data(&mut header, path, contents).with_context(|| format!("archive {path}"))
}
