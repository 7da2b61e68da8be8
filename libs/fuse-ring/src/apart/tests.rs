use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, fcntl_getfd, read};

use super::run;
use crate::transport::uring::Worker;

/// Whether the memory of a ring is mapped in this process, determined by system calls alone.
fn has_ring() -> Result<bool, Errno> {
    let maps = openat(CWD, c"/proc/self/maps", OFlags::RDONLY, Mode::empty())?;
    let (mut text, mut len) = ([0; 1 << 18], 0);
    loop {
        match read(&maps, &mut text[len..])? {
            0 => break,
            more => len += more,
        }
    }
    Ok(text[..len].windows(8).any(|part| part == b"io_uring"))
}

// Regression: a killed server did not end, since one of its threads waited for its own mount, and kept the
// connection open by a descriptor, or by the memory of a ring with commands.
#[test]
fn the_child_has_no_descriptor_and_no_ring_of_the_process() {
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let reader: BorrowedFd<'_> = reader.as_fd();
    match Worker::new(0, &[0], 4096) {
        Ok(_worker) => {
            assert_eq!(has_ring(), Ok(true));
            assert_eq!(run(|| has_ring().and_then(succeed_unless)), Some(Ok(())));
        }
        Err(error) => println!("SKIPPED: no ring: {error}"),
    }
    assert_eq!(run(|| succeed_unless(fcntl_getfd(reader).is_ok())), Some(Ok(())));
    fcntl_getfd(reader).expect("it is still open here");
}

fn succeed_unless(found: bool) -> Result<(), Errno> {
    if found { Err(Errno::EXIST) } else { Ok(()) }
}

#[test]
fn an_error_in_the_child_is_returned() {
    assert_eq!(run(|| Err(Errno::NOTCONN)), Some(Err(Errno::NOTCONN)));
}
