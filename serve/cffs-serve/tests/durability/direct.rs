//! Direct writes that the kernel treats as asynchronous: their visibility, and their failures.

use std::fs::{self, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::aio::{self, Aligned};
use crate::mount::{Mount, Transport};

const MIB: u64 = 1 << 20;

fn direct(path: &std::path::Path) -> fs::File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
    options.open(path).expect("opened")
}

/// Once a write has returned, every later read sees it, including reads of callers that read the file through
/// the page cache during the write.
fn shown_to_cached_readers(transport: Transport) {
    const LEN: usize = 64 << 10;
    let Some(mount) = Mount::new(transport, 64 * MIB) else { return };
    let path = mount.root().join("f");
    fs::write(&path, vec![0; LEN]).expect("written");
    let (writer, reader) = (direct(&path), fs::File::open(&path).expect("opened"));
    let is_over = AtomicBool::new(false);
    let stale = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buf = vec![0; LEN];
            while !is_over.load(Ordering::Relaxed) {
                reader.read_exact_at(&mut buf, 0).expect("read");
            }
        });
        let mut buf = vec![0; LEN];
        let stale = (1..=200u8).find(|round| {
            let data = Aligned::filled(LEN, *round);
            assert_eq!(aio::write(writer.as_fd(), &data, 0).expect("written"), LEN);
            reader.read_exact_at(&mut buf, 0).expect("read");
            buf.iter().any(|byte| byte != round)
        });
        is_over.store(true, Ordering::Relaxed);
        stale
    });
    assert_eq!(stale, None, "a round whose write was not shown");
}

#[test]
fn an_asynchronous_direct_write_is_visible_to_cached_readers() {
    shown_to_cached_readers(Transport::Dev);
    shown_to_cached_readers(Transport::Rings);
}

/// When space runs out, a write is short, and the next one fails with ENOSPC.
fn space_ends(transport: Transport) {
    let Some(mount) = Mount::new(transport, 16 * MIB) else { return };
    let path = mount.root().join("f");
    fs::write(&path, b"").expect("made");
    let file = direct(&path);
    let data = Aligned::filled(MIB as usize, 7);
    let mut end = 0;
    let error = loop {
        match aio::write(file.as_fd(), &data, end) {
            Ok(written) => end += written as u64,
            Err(error) => break error,
        }
        assert!(end < 16 * MIB, "more than the volume has");
    };
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()), "{error}");
    assert_eq!(fs::metadata(&path).expect("there").len(), end);
    assert!(fs::read(&path).expect("read").iter().all(|byte| *byte == 7));
}

#[test]
fn an_asynchronous_direct_write_is_short_when_space_runs_out() {
    space_ends(Transport::Dev);
    space_ends(Transport::Rings);
}
