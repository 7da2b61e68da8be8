//! Finds and reads files that are all in memory, for counting instructions: what recording costs is the
//! difference between a run without it and one with it.
//!
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null hot off 20000

use std::sync::Arc;

use cffs::clock::SystemClock;
use cffs::device::MemoryDevice;
use cffs::mkfs;
use cffs::trace::{Detail, RecordedDevice, Recorder};
use cffs::units::InodeNo;
use cffs::vfs::Caller;
use cffs::vfs::types::{NewFile, NewKind, OpenOptions};

const FILES: usize = 100;

fn main() -> cffs::error::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let detail = match arguments.first().map(String::as_str) {
        Some("causes") => Some(Detail::Causes),
        Some("all") => Some(Detail::All),
        _ => None,
    };
    let rounds = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(1000);
    let disk = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&disk, &mkfs::MkfsOptions::default())?;
    let recorder = Arc::new(Recorder::default());
    let device = Arc::new(RecordedDevice::new(disk, Arc::clone(&recorder)));
    let options = OpenOptions { recorder: Arc::clone(&recorder), ..OpenOptions::default() };
    let volume = cffs::open(device, Arc::new(SystemClock), options)?;
    let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    let mut buf = [0; 4096];
    for number in 0..FILES {
        let ino =
            volume.make(&Caller::ROOT, InodeNo::ROOT, format!("f{number}").as_bytes(), &new)?.ino;
        volume.write(&Caller::ROOT, ino, 0, &[1; 4096])?;
        volume.read(ino, 0, &mut buf)?;
    }
    volume.sync()?;
    if let Some(detail) = detail {
        recorder.start(detail)?;
    }
    let names: Vec<String> = (0..FILES).map(|number| format!("f{number}")).collect();
    for round in 0..rounds {
        let found = volume.lookup(InodeNo::ROOT, names[round % FILES].as_bytes())?;
        let len = volume.read(found.ino, 0, &mut buf)?;
        assert_eq!(len, buf.len());
        volume.release(found.ino, 1);
        if round % 1000 == 0 {
            recorder.take(usize::MAX);
        }
    }
    recorder.stop();
    volume.close()
}
