//! `fusermount3`, for ordinary users.
//!
//! The program inherits one end of a socket pair, whose number is in `_FUSE_COMMFD`, mounts, and
//! sends the descriptor of the device in a control message with one byte.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::{MountOptions, Unmount, data_options, join};
use crate::transport::device::Device;

const PROGRAM: &str = "fusermount3";

pub(super) fn mount(path: &Path, options: &MountOptions) -> io::Result<Device> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // This end must survive the `exec`. If another thread forks now, its child may inherit it; that
    // only costs a descriptor, since we wait for `fusermount3` itself.
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let child = Command::new(PROGRAM)
        .arg("-o")
        .arg(join(&helper_options(options)))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{PROGRAM}: {error}")))?;
    drop(theirs);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(message(&output.stderr)));
    }
    Ok(Device::from_fd(receive_fd(&ours)?))
}

pub(super) fn unmount(path: &Path, how: Unmount) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").arg("-q");
    if how == Unmount::Lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(path).stdin(Stdio::null()).output()?;
    if output.status.success() { Ok(()) } else { Err(io::Error::other(message(&output.stderr))) }
}

/// `fusermount3` takes flags as options. An ordinary user always gets `nosuid` and `nodev`.
fn helper_options(options: &MountOptions) -> Vec<OsString> {
    let mut list = data_options(options);
    list.push(option_with("fsname=", &options.fsname));
    if !options.subtype.is_empty() {
        list.push(option_with("subtype=", OsStr::new(&options.subtype)));
    }
    let flags =
        [(options.read_only, "ro"), (options.no_exec, "noexec"), (options.no_atime, "noatime")];
    list.extend(flags.iter().filter(|(set, _)| *set).map(|(_, name)| OsString::from(name)));
    list
}

/// Commas separate options, and backslashes escape them.
fn option_with(key: &str, value: &OsStr) -> OsString {
    let mut option = key.as_bytes().to_vec();
    for &byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            option.push(b'\\');
        }
        option.push(byte);
    }
    OsString::from_vec(option)
}

fn receive_fd(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other(format!("{PROGRAM} sent no descriptor")))
}

fn message(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    if text.is_empty() { format!("{PROGRAM} failed") } else { text.to_owned() }
}
