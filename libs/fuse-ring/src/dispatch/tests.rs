//! Replies to the handler's results.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::{Dispatcher, Outcome};
use crate::Handler;
use crate::protocol::{
    Context, CopyFileRange, Dialect, Features, FileHandle, Frame, Granted, Ioctl, NodeId, Open,
    Opened, Read, Write,
};

/// A handler that returns whatever the test sets, valid or not.
struct Puppet {
    len: usize,
    calls: AtomicUsize,
}

impl Handler for Puppet {
    fn read(&self, _: &Context<'_>, _: NodeId, _: &Read, buf: &mut [u8]) -> Result<usize, Errno> {
        buf.fill(b'r');
        Ok(self.len)
    }

    fn write(&self, _: &Context<'_>, _: NodeId, _: &Write<'_>) -> Result<usize, Errno> {
        Ok(self.len)
    }

    fn getxattr(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: &[u8],
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        buf.fill(b'x');
        Ok(self.len)
    }

    fn ioctl(
        &self,
        _: &Context<'_>,
        _: NodeId,
        ioctl: &Ioctl<'_>,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        match ioctl.command {
            1 => {
                buf.fill(ioctl.data[0]);
                Ok(self.len)
            }
            _ => Err(Errno::NOTTY),
        }
    }

    fn copy_file_range(&self, _: &Context<'_>, _: NodeId, _: &CopyFileRange) -> Result<u64, Errno> {
        Ok(self.len as u64)
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<Opened, Errno> {
        Ok(Opened { handle: FileHandle(7), ..Opened::default() })
    }

    fn forget(&self, _: NodeId, lookups: u64) {
        self.calls.fetch_add(lookups as usize, Ordering::Relaxed);
    }

    fn unlink(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<(), Errno> {
        panic!("on purpose");
    }

    fn rmdir(&self, _: &Context<'_>, _: NodeId, _: &[u8]) -> Result<(), Errno> {
        Ok(())
    }

    fn destroy(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

const GRANTED: Granted = Granted {
    minor: 45,
    features: Features::SETXATTR_EXT,
    max_write: 4096,
    max_readahead: 0,
    elide_open: false,
    elide_opendir: false,
};

fn dispatcher(len: usize) -> Dispatcher<Puppet> {
    Dispatcher::new(Puppet { len, calls: AtomicUsize::new(0) }, GRANTED)
}

fn message(opcode: u32, words: &[u64], tail: &[u8]) -> Vec<u8> {
    let len = 40 + words.len() * 8 + tail.len();
    let mut message = Vec::from((len as u32).to_ne_bytes());
    message.extend(opcode.to_ne_bytes());
    message.extend([0; 32]);
    words.iter().for_each(|word| message.extend(word.to_ne_bytes()));
    message.extend(tail);
    message
}

/// Serves one message; returns the payload of the reply.
fn serve(
    dispatcher: &Dispatcher<Puppet>,
    opcode: u32,
    words: &[u64],
    tail: &[u8],
) -> Option<Result<Vec<u8>, Errno>> {
    let message = message(opcode, words, tail);
    let frame = Frame::contiguous(&message, Dialect { setxattr_ext: true }).unwrap();
    let mut payload = [0; 512];
    match dispatcher.serve(&frame, &mut payload) {
        Outcome::Silent => None,
        Outcome::Reply(result) => Some(result.map(|len| payload[..len].to_vec())),
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from_ne_bytes(zerocopy::transmute!([low, high]))
}

#[test]
fn reads_have_the_length_that_the_handler_returns() {
    let read = |len, size| serve(&dispatcher(len), 15, &[0, 0, pair(size, 0), 0, 0], b"").unwrap();
    assert_eq!(read(3, 100), Ok(vec![b'r'; 3]));
    assert_eq!(read(0, 100), Ok(vec![]));
    assert_eq!(read(101, 100), Err(Errno::IO), "more than was asked for");
}

#[test]
fn writes_are_no_longer_than_their_data() {
    let write = |len| serve(&dispatcher(len), 16, &[0, 0, pair(4, 0), 0, 0], b"data").unwrap();
    assert_eq!(write(4), Ok(pair(4, 0).to_ne_bytes().to_vec()));
    assert_eq!(write(5), Err(Errno::IO));
}

#[test]
fn xattrs_are_measured_copied_or_refused() {
    let get = |len, size| serve(&dispatcher(len), 22, &[pair(size, 0)], b"user.a\0").unwrap();
    assert_eq!(get(5, 0), Ok(pair(5, 0).to_ne_bytes().to_vec()));
    assert_eq!(get(5, 5), Ok(vec![b'x'; 5]));
    assert_eq!(get(5, 4), Err(Errno::RANGE));
}

#[test]
fn copies_are_counted_in_32_bits_or_in_64() {
    let copy = |opcode, len| serve(&dispatcher(len), opcode, &[0; 7], b"").unwrap();
    assert_eq!(copy(47, 9), Ok(pair(9, 0).to_ne_bytes().to_vec()));
    assert_eq!(copy(47, 1 << 32), Err(Errno::IO));
    assert_eq!(copy(53, 1 << 32), Ok((1_u64 << 32).to_ne_bytes().to_vec()));
}

#[test]
fn ioctls_get_their_input_and_room_for_their_output() {
    let command = |len, number| {
        let words = [0, pair(0, number), 0, pair(1, 2)];
        serve(&dispatcher(len), 39, &words, b"x").unwrap()
    };
    assert_eq!(command(2, 1).map(|reply| reply[16..].to_vec()), Ok(b"xx".to_vec()));
    assert_eq!(command(3, 1), Err(Errno::IO), "more than there is room for");
    assert_eq!(command(0, 2), Err(Errno::NOTTY));
}

#[test]
fn forgets_are_not_answered() {
    let dispatcher = dispatcher(0);
    assert_eq!(serve(&dispatcher, 2, &[5], b""), None);
    assert_eq!(serve(&dispatcher, 42, &[pair(2, 0), 1, 1, 2, 10], b""), None);
    assert_eq!(dispatcher.handler.calls.load(Ordering::Relaxed), 16);
}

#[test]
fn an_elided_open_never_reaches_the_handler() {
    let mut dispatcher = dispatcher(0);
    assert!(serve(&dispatcher, 14, &[0], b"").unwrap().is_ok());
    dispatcher.granted.elide_open = true;
    assert_eq!(serve(&dispatcher, 14, &[0], b""), Some(Err(Errno::NOSYS)));
    assert!(serve(&dispatcher, 27, &[0], b"").unwrap().is_ok(), "directories are still opened");
}

#[test]
fn a_malformed_request_gets_an_error() {
    assert_eq!(serve(&dispatcher(0), 1, &[], b"unterminated"), Some(Err(Errno::IO)));
}

#[test]
fn an_unimplemented_operation_is_refused() {
    assert_eq!(serve(&dispatcher(0), 4000, &[], b""), Some(Err(Errno::NOSYS)));
    assert_eq!(serve(&dispatcher(0), 40, &[0; 3], b""), Some(Err(Errno::NOSYS)), "POLL");
    assert_eq!(serve(&dispatcher(0), 33, &[0; 6], b""), Some(Err(Errno::NOSYS)), "SETLKW");
    assert_eq!(serve(&dispatcher(0), 39, &[0; 4], b""), Some(Err(Errno::NOTTY)), "IOCTL");
}

#[test]
fn a_handler_that_panicked_is_not_called_again() {
    let dispatcher = dispatcher(0);
    assert_eq!(serve(&dispatcher, 11, &[], b"name\0"), Some(Ok(vec![])));
    assert_eq!(serve(&dispatcher, 10, &[], b"name\0"), Some(Err(Errno::IO)));
    assert!(dispatcher.panicked());
    assert_eq!(serve(&dispatcher, 11, &[], b"name\0"), Some(Err(Errno::IO)));
    assert_eq!(serve(&dispatcher, 2, &[5], b""), None);
    assert_eq!(dispatcher.destroy(), Err(Errno::IO));
    assert_eq!(dispatcher.handler.calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_panic_is_reported_while_its_request_is_known() {
    let before = std::panic::take_hook();
    let (sender, reported) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let mine = std::thread::current().id();
    std::panic::set_hook(Box::new(move |_| {
        if std::thread::current().id() == mine {
            let _ = sender.lock().map(|sender| sender.send(crate::current_request()));
        }
    }));
    let result = serve(&dispatcher(0), 10, &[], b"name\0");
    std::panic::set_hook(before);
    assert_eq!(result, Some(Err(Errno::IO)));
    let request = reported.try_recv().expect("it panicked");
    assert_eq!(request.map(|(opcode, _)| opcode), Some(crate::protocol::Opcode::Unlink));
    assert_eq!(crate::current_request(), None, "it is over");
}
