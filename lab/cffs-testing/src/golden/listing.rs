//! Listings of a volume by two readers: the file system itself, and `python/cffs_decode.py`, which is written
//! from `docs/FORMAT.md` alone. Both write one line per name.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use cffs::device::Image;
use cffs::error::Result;
use cffs::format::checksum;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::{Attr, Volume};

/// The file system's listing of a volume.
pub fn of(volume: &Volume) -> Result<String> {
    let root = volume.attr(InodeNo::ROOT)?;
    let mut found = vec![(b"/".to_vec(), root)];
    let mut todo = vec![(Vec::new(), InodeNo::ROOT)];
    while let Some((path, dir)) = todo.pop() {
        let mut names = Vec::new();
        volume.read_dir(dir, 0, false, &mut |entry| {
            names.push((entry.name.to_vec(), entry.ino));
            true
        })?;
        for (name, ino) in names {
            let path = [&path[..], b"/", &name].concat();
            let attr = volume.lookup(dir, &name)?;
            volume.release(attr.ino, 1);
            assert_eq!(attr.ino, ino, "a lookup and a listing differ");
            if attr.file_type == FileType::Directory {
                todo.push((path.clone(), attr.ino));
            }
            found.push((path, attr));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let mut out = String::new();
    for (path, attr) in &found {
        line(&mut out, volume, path, attr)?;
    }
    Ok(out)
}

fn line(out: &mut String, volume: &Volume, path: &[u8], attr: &Attr) -> Result<()> {
    for byte in path {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                out.push(char::from(*byte));
            }
            _ => append(out, format_args!("%{byte:02X}")),
        }
    }
    let size = if attr.file_type == FileType::Directory { 0 } else { attr.size };
    append(
        out,
        format_args!(
            " ino={}.{} mode={:o} nlink={} owner={}:{} size={size} device={} times=",
            attr.ino,
            attr.generation,
            attr.mode(),
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.device,
        ),
    );
    for time in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
        append(out, format_args!("{}.{:09} ", time.seconds, time.nanoseconds));
    }
    let contents = match attr.file_type {
        FileType::Regular => {
            let mut contents = vec![0; attr.size as usize];
            assert_eq!(volume.read(attr.ino, 0, &mut contents)?, contents.len());
            contents
        }
        FileType::Symlink => volume.read_link(attr.ino)?,
        _ => Vec::new(),
    };
    append(out, format_args!("crc={:08x} xattrs=", checksum::contents(0, &contents)));
    for (position, name) in volume.xattr_names(attr.ino)?.iter().enumerate() {
        let value = volume.xattr(attr.ino, name)?;
        let comma = if position == 0 { "" } else { "," };
        append(out, format_args!("{comma}{}={}", hex(name), hex(&value)));
    }
    out.push('\n');
    Ok(())
}

/// Writing to a string cannot fail.
fn append(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes all");
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        append(&mut out, format_args!("{byte:02x}"));
        out
    })
}

/// The independent decoder's listing of an image, in which it must find no problem.
pub fn decoded(image: &Image) -> String {
    let (status, listing, problems) = decode(image);
    assert!(status == Some(0) && problems.is_empty(), "the decoder found problems:\n{problems}");
    listing
}

/// Runs the independent decoder; returns its exit status, its listing, and the problems found.
pub fn decode(image: &Image) -> (Option<i32>, String, String) {
    run("cffs_decode.py", &["--listing"], image)
}

/// The records of the intent log, as the independent decoder reads them: the kind and the fields of each.
pub fn decoded_log(image: &Image) -> String {
    let (status, log, problems) = run("cffs_intent_log.py", &[], image);
    assert!(status == Some(0) && problems.is_empty(), "the decoder found problems:\n{problems}");
    log
}

/// Runs a script of the decoder.
fn run(script: &str, options: &[&str], image: &Image) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("image");
    image.save(&path).expect("the image is saved");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python").join(script);
    let output = Command::new("python3").arg(script).args(options).arg(path).output();
    let output = output.expect("python3 runs");
    let text = |bytes| String::from_utf8(bytes).expect("the decoder prints UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}
