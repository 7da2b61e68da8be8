//! Imports a tree by several threads, shows how it continues, and reads the copy back.
//!
//! ```text
//! cffs mkfs --size 4G tree.cffs
//! cargo run --release --example import -- tree.cffs ~/src
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use cffs::files::{self, CopyError, CopyOptions, Files, Observer};
use cffs::format::inode::FileType;
use cffs::vfs::types::OpenOptions;

/// Prints each thousandth file, and each failure.
#[derive(Default)]
struct Watcher(AtomicU64);

impl Observer for Watcher {
    fn copied(&self, path: &Path, _: u64) {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(1000) {
            println!("{count} files, now at {}", path.display());
        }
    }

    fn failed(&self, error: &CopyError) {
        eprintln!("{error}");
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("import: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(image), Some(source)) = (arguments.next(), arguments.next()) else {
        return Err("usage: import IMAGE DIRECTORY".into());
    };
    let files = Files::open_image(&image, OpenOptions::default())?;
    let options = CopyOptions::default();
    let summary = files::import(&files, &source, b"/", &options, &Watcher::default())?;
    println!("{summary:?}");

    let mut bytes = 0;
    for entry in files.walk("/")? {
        let entry = entry?;
        if entry.attr.file_type == FileType::Regular {
            bytes += files.read(&entry.path)?.len();
        }
    }
    println!("{bytes} bytes read back");
    files.close()?;
    Ok(())
}
