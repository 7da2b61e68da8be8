//! A tour of the library: opens an image, makes and changes files, walks, and closes it.
//!
//! ```text
//! cffs mkfs --size 64M tree.cffs
//! cargo run --example tour -- tree.cffs
//! ```

use std::error::Error;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use cffs::files::Files;
use cffs::vfs::types::OpenOptions;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tour: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let image = std::env::args_os().nth(1).map(PathBuf::from);
    let image = image.ok_or("usage: tour IMAGE")?;
    let files = Files::open_image(&image, OpenOptions::default())?;

    files.make_dir_all("/tour/notes")?;
    files.write("/tour/notes/today", b"a small file lies in its inode")?;
    files.symlink(b"notes/today", "/tour/latest")?;
    println!("latest: {}", String::from_utf8_lossy(&files.read("/tour/latest")?));

    // A file has a position, as those of the standard library have.
    let mut log = files.create("/tour/log")?;
    writeln!(log, "first line")?;
    writeln!(log, "second line")?;
    log.seek(SeekFrom::Start(6))?;
    let mut rest = String::new();
    log.read_to_string(&mut rest)?;
    println!("log from byte 6 on: {rest:?}");
    // Durable from here on, whatever happens to the program.
    log.sync()?;
    drop(log);

    for entry in files.walk("/tour")? {
        let entry = entry?;
        let path = String::from_utf8_lossy(&entry.path);
        println!("{:>8} {:>10} {path}", entry.attr.ino, entry.attr.size);
    }
    let stats = files.volume().stats();
    println!("{} reads, {} writes so far", stats.device_reads, stats.device_writes);
    files.close()?;
    Ok(())
}
