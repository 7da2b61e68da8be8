//! MOUNT, version 3 (RFC 1813, appendix I): from a path to the first handle.

use crate::nfs::Status;
use crate::xdr::{Reader, Result, Writer};

/// The program's number.
pub const PROGRAM: u32 = 100_005;
/// Its version.
pub const VERSION: u32 = 3;
/// The longest path.
pub const PATH_BYTES_MAX: u32 = 1024;

const AUTH_SYS: u32 = 1;

/// The calls of the MOUNT protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// Nothing.
    Null,
    /// The handle of a directory.
    Mount(&'a [u8]),
    /// The mounts of clients.
    Dump,
    /// The caller no longer uses a directory.
    Unmount(&'a [u8]),
    /// The caller no longer uses any directory.
    UnmountAll,
    /// Lists the exports.
    Export,
}

impl<'a> Call<'a> {
    /// Decodes the arguments of a procedure; `None` if there is no such procedure.
    ///
    /// # Errors
    ///
    /// [`Malformed`](crate::xdr::Malformed).
    pub fn decode(procedure: u32, arguments: &'a [u8]) -> Result<Option<Call<'a>>> {
        let mut r = Reader::new(arguments);
        let call = match procedure {
            0 => Call::Null,
            1 => Call::Mount(r.opaque(PATH_BYTES_MAX)?),
            2 => Call::Dump,
            3 => Call::Unmount(r.opaque(PATH_BYTES_MAX)?),
            4 => Call::UnmountAll,
            5 => Call::Export,
            _ => return Ok(None),
        };
        r.end().map(|()| Some(call))
    }
}

/// The reply to [`Call::Mount`]: a handle, or the status of a failure. Statuses are those of NFS.
pub fn mounted(w: &mut Writer, result: std::result::Result<&[u8], Status>) {
    match result {
        Ok(handle) => {
            w.u32(Status::Ok as u32);
            w.opaque(handle);
            w.u32(1);
            w.u32(AUTH_SYS);
        }
        Err(status) => w.u32(status as u32),
    }
}

/// The reply to [`Call::Dump`]: an empty list, since the server keeps no record of mounts.
pub fn dumped(w: &mut Writer) {
    w.bool(false);
}

/// The reply to [`Call::Export`]: directories, and the clients that may mount each; an empty list means all.
pub fn exported<'a, G: Iterator<Item = String>>(
    w: &mut Writer,
    exports: impl Iterator<Item = (&'a [u8], G)>,
) {
    for (path, groups) in exports {
        w.bool(true);
        w.opaque(path);
        for group in groups {
            w.bool(true);
            w.opaque(group.as_bytes());
        }
        w.bool(false);
    }
    w.bool(false);
}
