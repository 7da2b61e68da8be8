//! The sizes of the caches between a program and a disk: the memory half of FAST (PLACE, section 4.2).
//!
//! The processor's caches are those that the kernel lists. How much of a file stays in the page cache depends
//! on limits of control groups and on other programs, so that is found by growing a file until its beginning
//! is no longer in memory. No times are measured: the kernel says whether a read would need the device.

use std::fs::{self, File};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use serde::Serialize;

/// The sizes of caches, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// The data caches of the first processor, the fastest first.
    pub processor_caches: Vec<u64>,
    /// The memory of the machine.
    pub total_bytes: u64,
    /// How much of a file stays in the page cache; a lower bound if `is_whole`.
    pub file_bytes: u64,
    /// Whether the whole file stayed in memory.
    pub is_whole: bool,
}

/// How much the file grows between two checks of its beginning.
const STEP_BYTES: usize = 4 << 20;

/// Grows a file without a name in a directory up to `most` bytes, until its beginning is no longer in the
/// page cache. This evicts the cached pages of other programs.
pub fn measure(directory: &Path, most: u64) -> Result<Memory> {
    let at = || directory.display().to_string();
    let file = File::options()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::TMPFILE.bits() as i32)
        .open(directory)
        .with_context(at)?;
    let step = vec![1; STEP_BYTES];
    let mut end = 0;
    let mut is_whole = true;
    while is_whole && end < most {
        file.write_all_at(&step, end).with_context(at)?;
        // Only clean pages leave the cache.
        file.sync_data().with_context(at)?;
        end += STEP_BYTES as u64;
        is_whole = is_cached(&file, 0).with_context(at)?;
    }
    let mut cached = 0;
    for page in (0..end).step_by(STEP_BYTES / 64) {
        cached += u64::from(is_cached(&file, page).with_context(at)?) * (STEP_BYTES / 64) as u64;
    }
    Ok(Memory {
        processor_caches: processor_caches(),
        total_bytes: total_bytes().context("/proc/meminfo")?,
        file_bytes: cached,
        is_whole,
    })
}

/// Whether a byte of a file is in memory.
fn is_cached(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = [0];
    match preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT) {
        Ok(read) => Ok(read == 1),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn processor_caches() -> Vec<u64> {
    let size = |index: u32| -> Option<u64> {
        let of = |name: &str| {
            let at = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
            fs::read_to_string(at).ok()
        };
        let is_data = of("type")?.trim() != "Instruction";
        let kib: u64 = of("size")?.trim().strip_suffix('K')?.parse().ok()?;
        is_data.then_some(kib << 10)
    };
    let mut sizes: Vec<u64> = (0..16).filter_map(size).collect();
    sizes.sort_unstable();
    sizes
}

fn total_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("it has no MemTotal"))
}
