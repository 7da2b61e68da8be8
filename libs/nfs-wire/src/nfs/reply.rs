//! The results of the procedures (3.3), appended to the head of a reply.
//!
//! The status comes first; the rest depends on the procedure and on whether it succeeded.

use super::{ATTRIBUTES_BYTES, Attributes, Stability, Status, Time, Wcc, post_op};
use crate::xdr::Writer;

/// The result of a procedure, or the reason of its failure.
pub type Outcome<T> = Result<T, Status>;

/// Attributes after a call, if they are known.
pub type PostOp<'a> = Option<&'a Attributes>;

/// Appends the status, and returns the result of a success.
fn status<T>(w: &mut Writer, outcome: Outcome<T>) -> Option<T> {
    match outcome {
        Ok(value) => {
            w.u32(Status::Ok as u32);
            Some(value)
        }
        Err(failure) => {
            w.u32(failure as u32);
            None
        }
    }
}

/// GETATTR.
pub fn attributes(w: &mut Writer, outcome: Outcome<Attributes>) {
    if let Some(attributes) = status(w, outcome) {
        attributes.encode(w);
    }
}

/// SETATTR, REMOVE and RMDIR.
pub fn changed(w: &mut Writer, outcome: Outcome<()>, change: &Wcc) {
    status(w, outcome);
    change.encode(w);
}

/// LOOKUP.
pub fn found(w: &mut Writer, outcome: Outcome<(&[u8], Attributes)>, dir: PostOp<'_>) {
    if let Some((handle, attributes)) = status(w, outcome) {
        w.opaque(handle);
        post_op(w, Some(&attributes));
    }
    post_op(w, dir);
}

/// ACCESS.
pub fn access(w: &mut Writer, outcome: Outcome<u32>, file: PostOp<'_>) {
    let granted = status(w, outcome);
    post_op(w, file);
    granted.into_iter().for_each(|granted| w.u32(granted));
}

/// READLINK.
pub fn link_target(w: &mut Writer, outcome: Outcome<&[u8]>, file: PostOp<'_>) {
    let target = status(w, outcome);
    post_op(w, file);
    target.into_iter().for_each(|target| w.opaque(target));
}

/// READ, of at most `max` bytes, which `read` writes into the reply. `read` returns their number, whether
/// they end the file, and the file's attributes afterwards.
pub fn read(
    w: &mut Writer,
    max: usize,
    read: impl FnOnce(&mut [u8]) -> Result<(usize, bool, Attributes), Status>,
) -> Result<(), Status> {
    let at = w.bytes().len();
    // Filled in once the contents are there.
    w.fixed(&[0; 4 + 4 + ATTRIBUTES_BYTES + 4 + 4]);
    let (mut is_end, mut attributes) = (false, None);
    let len = w.opaque_in_place(max, |buf| {
        let (len, end, after) = read(buf)?;
        (is_end, attributes) = (end, Some(after));
        Ok(len)
    });
    let len = len.inspect_err(|_| w.cut(at))?;
    let mut head = Writer::default();
    head.u32(Status::Ok as u32);
    post_op(&mut head, attributes.as_ref());
    head.u32(len as u32);
    head.bool(is_end);
    w.replace(at, &head);
    Ok(())
}

/// A failed READ, READDIR or READDIRPLUS.
pub fn failed(w: &mut Writer, failure: Status, file: PostOp<'_>) {
    w.u32(failure as u32);
    post_op(w, file);
}

/// The results of WRITE.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Bytes written.
    pub count: u32,
    /// How durable they are.
    pub stability: Stability,
    /// The verifier of this server.
    pub verifier: [u8; 8],
}

/// WRITE.
pub fn written(w: &mut Writer, outcome: Outcome<Written>, change: &Wcc) {
    let written = status(w, outcome);
    change.encode(w);
    if let Some(written) = written {
        w.u32(written.count);
        w.u32(written.stability as u32);
        w.fixed(&written.verifier);
    }
}

/// CREATE, MKDIR, SYMLINK and MKNOD.
pub fn made(w: &mut Writer, outcome: Outcome<(&[u8], Attributes)>, dir: &Wcc) {
    if let Some((handle, attributes)) = status(w, outcome) {
        w.optional(Some(handle), |w, handle| w.opaque(handle));
        post_op(w, Some(&attributes));
    }
    dir.encode(w);
}

/// RENAME.
pub fn renamed(w: &mut Writer, outcome: Outcome<()>, from: &Wcc, to: &Wcc) {
    status(w, outcome);
    from.encode(w);
    to.encode(w);
}

/// LINK.
pub fn linked(w: &mut Writer, outcome: Outcome<()>, file: PostOp<'_>, dir: &Wcc) {
    status(w, outcome);
    post_op(w, file);
    dir.encode(w);
}

/// READDIR and READDIRPLUS: as many entries as fit.
#[derive(Debug)]
pub struct Listing<'a> {
    w: &'a mut Writer,
    /// The offset at which the results must end, including the marks after the list.
    end: usize,
    names_left: usize,
    is_plus: bool,
    entries: u32,
    is_full: bool,
}

/// The size of the mark after the last entry, and of the flag that tells whether more follow.
const LISTING_END_BYTES: usize = 8;

impl<'a> Listing<'a> {
    /// READDIR, with results of at most `bytes_max` bytes.
    pub fn new(w: &'a mut Writer, dir: PostOp<'_>, bytes_max: u32) -> Listing<'a> {
        Listing::start(w, dir, usize::MAX, bytes_max, false)
    }

    /// READDIRPLUS: the names and cookies also have a limit of their own.
    pub fn plus(w: &'a mut Writer, dir: PostOp<'_>, names_max: u32, bytes_max: u32) -> Listing<'a> {
        Listing::start(w, dir, names_max as usize, bytes_max, true)
    }

    fn start(
        w: &'a mut Writer,
        dir: PostOp<'_>,
        names_left: usize,
        bytes_max: u32,
        is_plus: bool,
    ) -> Listing<'a> {
        let begin = w.bytes().len();
        w.u32(Status::Ok as u32);
        post_op(w, dir);
        // Cookies stay valid forever, so their verifier is always the same.
        w.fixed(&[0; 8]);
        let end = begin.saturating_add(bytes_max as usize);
        Listing { w, end, names_left, is_plus, entries: 0, is_full: false }
    }

    /// Adds an entry; false if it does not fit. `file`: the handle and attributes, for READDIRPLUS.
    pub fn push(
        &mut self,
        fileid: u64,
        name: &[u8],
        cookie: u64,
        file: Option<(&[u8], &Attributes)>,
    ) -> bool {
        let before = self.w.bytes().len();
        self.w.bool(true);
        self.w.u64(fileid);
        self.w.opaque(name);
        self.w.u64(cookie);
        let names = self.w.bytes().len() - before;
        if self.is_plus {
            post_op(self.w, file.map(|(_, attributes)| attributes));
            self.w.optional(file, |w, (handle, _)| w.opaque(handle));
        }
        let fits = self.w.bytes().len() + LISTING_END_BYTES <= self.end && names <= self.names_left;
        if fits && !self.is_full {
            self.names_left -= names;
            self.entries += 1;
        } else {
            self.w.cut(before);
            self.is_full = true;
        }
        !self.is_full
    }

    /// Ends the list.
    ///
    /// # Errors
    ///
    /// [`Status::TooSmall`] if there are entries, and none of them fits.
    pub fn finish(self) -> Result<(), Status> {
        if self.entries == 0
            && (self.is_full || self.w.bytes().len() + LISTING_END_BYTES > self.end)
        {
            return Err(Status::TooSmall);
        }
        self.w.bool(false);
        self.w.bool(!self.is_full);
        Ok(())
    }
}

/// FSSTAT: bytes and files, each total, free, and available to users.
pub fn fs_stat(w: &mut Writer, outcome: Outcome<[u64; 6]>, root: PostOp<'_>) {
    let numbers = status(w, outcome);
    post_op(w, root);
    if let Some(numbers) = numbers {
        numbers.into_iter().for_each(|number| w.u64(number));
        // The values may change at any time.
        w.u32(0);
    }
}

/// The results of FSINFO.
#[derive(Clone, Copy, Debug)]
pub struct FsInfo {
    /// The most bytes of a READ or a WRITE.
    pub transfer_bytes_max: u32,
    /// The preferred multiple of transfer sizes.
    pub multiple_bytes: u32,
    /// The preferred size of a READDIR.
    pub listing_bytes: u32,
    /// The largest size of a file.
    pub file_bytes_max: u64,
}

/// FSINFO of a homogeneous file system with hard and symbolic links that can set times.
pub fn fs_info(w: &mut Writer, outcome: Outcome<FsInfo>, root: PostOp<'_>) {
    const LINK: u32 = 0x01;
    const SYMLINK: u32 = 0x02;
    const HOMOGENEOUS: u32 = 0x08;
    const CAN_SET_TIME: u32 = 0x10;
    let info = status(w, outcome);
    post_op(w, root);
    if let Some(info) = info {
        for _read_and_write in 0..2 {
            w.u32(info.transfer_bytes_max);
            w.u32(info.transfer_bytes_max);
            w.u32(info.multiple_bytes);
        }
        w.u32(info.listing_bytes);
        w.u64(info.file_bytes_max);
        Time { seconds: 0, nanoseconds: 1 }.encode(w);
        w.u32(LINK | SYMLINK | HOMOGENEOUS | CAN_SET_TIME);
    }
}

/// PATHCONF: the most names of a file, and the longest name; names that are too long are refused, only root
/// may use chown, and case is preserved and significant.
pub fn path_conf(w: &mut Writer, outcome: Outcome<(u32, u32)>, file: PostOp<'_>) {
    let limits = status(w, outcome);
    post_op(w, file);
    if let Some((links_max, name_bytes_max)) = limits {
        w.u32(links_max);
        w.u32(name_bytes_max);
        [true, true, false, true].into_iter().for_each(|property| w.bool(property));
    }
}

/// COMMIT: the verifier of this server.
pub fn committed(w: &mut Writer, outcome: Outcome<[u8; 8]>, change: &Wcc) {
    let verifier = status(w, outcome);
    change.encode(w);
    verifier.into_iter().for_each(|verifier| w.fixed(&verifier));
}
