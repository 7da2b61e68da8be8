//! The records of a trace, as bytes.
//!
//! A trace is a header and records; all numbers are little-endian. A record is a tag, the length of its
//! body in four bytes, and the body; a reader passes over tags that it does not know. Operations come
//! when they have ended, and requests too.
//!
//! | tag | body |
//! | --- | --- |
//! | 1 | operation: number, inode, start, duration, 8 bytes each |
//! | 2 | request: kind, way, whether it succeeded, 0; first byte, length, start, duration, 8 bytes each; then the shares: operation (8 bytes), part (4) |
//! | 3 | counts of operations: kind (1 byte), count (8) |
//! | 4 | the number of records (8 bytes) that found no room here |
//! | 5 | name of a process: number (4 bytes), then the name |
//!
//! Times are nanoseconds of a monotonic clock, since some moment.

use std::io::{self, Read};

use super::op::{OpId, OpKind, Share, WHOLE, Way};
use crate::device::RequestKind;

/// How a trace begins.
const MAGIC: &[u8; 8] = b"cffstrc1";
/// The length of a trace's header.
pub const HEADER_BYTES: usize = 24;
/// The longest body: a request of many blocks with many causes each.
const BODY_BYTES_MAX: usize = 16 << 20;
const SHARE_BYTES: usize = 12;
const REQUEST_BYTES: usize = 36;

/// The head of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// When the recording began.
    pub began_ns: u64,
    /// The same as the time since 1970.
    pub began_unix_ns: u64,
}

impl Header {
    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.began_ns.to_le_bytes());
        out.extend_from_slice(&self.began_unix_ns.to_le_bytes());
    }
}

/// One record of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An operation has ended.
    Operation {
        /// Its number.
        id: OpId,
        /// The inode that it was called for: of names, the directory.
        ino: u64,
        /// When it began; of one that is recorded only because it caused something, when it did that.
        started_ns: u64,
        /// How long it took.
        duration_ns: u64,
    },
    /// A request has ended.
    Request {
        /// The kind of the request.
        kind: RequestKind,
        /// How it came from its operations.
        way: Way,
        /// Whether it succeeded.
        succeeded: bool,
        /// The first byte.
        offset_bytes: u64,
        /// How many bytes.
        len_bytes: u64,
        /// When it was made.
        started_ns: u64,
        /// How long it took.
        duration_ns: u64,
        /// Whose it is; the parts add up to [`WHOLE`].
        shares: Vec<Share>,
    },
    /// How many operations there were, those included that are not recorded one by one.
    Counts(Vec<(OpKind, u64)>),
    /// This many records found no room.
    Lost(u64),
    /// The name of a process.
    Process {
        /// Its number.
        process: u32,
        /// Its name, as the kernel has it.
        name: Vec<u8>,
    },
}

const OPERATION: u8 = 1;
const REQUEST: u8 = 2;
const COUNTS: u8 = 3;
const LOST: u8 = 4;
const PROCESS: u8 = 5;

fn kind_number(kind: RequestKind) -> u8 {
    match kind {
        RequestKind::Read => 1,
        RequestKind::Write => 2,
        RequestKind::Barrier => 3,
        RequestKind::Sync => 4,
        RequestKind::Discard => 5,
    }
}

fn kind_from_number(number: u8) -> Option<RequestKind> {
    Some(match number {
        1 => RequestKind::Read,
        2 => RequestKind::Write,
        3 => RequestKind::Barrier,
        4 => RequestKind::Sync,
        5 => RequestKind::Discard,
        _ => return None,
    })
}

impl Record {
    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 5]);
        let tag = self.encode_body(out);
        let len = (out.len() - start - 5) as u32;
        out[start] = tag;
        out[start + 1..start + 5].copy_from_slice(&len.to_le_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) -> u8 {
        let mut put = |number: u64| out.extend_from_slice(&number.to_le_bytes());
        match self {
            Record::Operation { id, ino, started_ns, duration_ns } => {
                [id.bits(), *ino, *started_ns, *duration_ns].into_iter().for_each(put);
                OPERATION
            }
            Record::Request {
                kind,
                way,
                succeeded,
                offset_bytes,
                len_bytes,
                started_ns,
                duration_ns,
                shares,
            } => {
                out.extend_from_slice(&[kind_number(*kind), *way as u8, u8::from(*succeeded), 0]);
                for number in [offset_bytes, len_bytes, started_ns, duration_ns] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                for share in shares {
                    out.extend_from_slice(&share.op.bits().to_le_bytes());
                    out.extend_from_slice(&share.part.to_le_bytes());
                }
                REQUEST
            }
            Record::Counts(counts) => {
                for (kind, count) in counts {
                    out.push(*kind as u8);
                    out.extend_from_slice(&count.to_le_bytes());
                }
                COUNTS
            }
            Record::Lost(count) => {
                put(*count);
                LOST
            }
            Record::Process { process, name } => {
                out.extend_from_slice(&process.to_le_bytes());
                out.extend_from_slice(name);
                PROCESS
            }
        }
    }

    /// The record with this tag and body; none if it is of a kind that is not known, and an error in words
    /// if it makes no sense.
    fn decode(tag: u8, body: &[u8]) -> Result<Option<Record>, &'static str> {
        let u64_at = |at: usize| {
            let bytes = body.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or("a record is too short")
        };
        let op = |bits| OpId::from_bits(bits).ok_or("an operation of no known kind");
        Ok(Some(match tag {
            OPERATION => Record::Operation {
                id: op(u64_at(0)?)?,
                ino: u64_at(8)?,
                started_ns: u64_at(16)?,
                duration_ns: u64_at(24)?,
            },
            REQUEST => {
                let &[kind, way, succeeded, _, ..] = body else {
                    return Err("a record is too short");
                };
                let rest = body.get(REQUEST_BYTES..).ok_or("a record is too short")?;
                let mut shares = Vec::with_capacity(rest.len() / SHARE_BYTES);
                let mut sum = 0;
                for at in (REQUEST_BYTES..body.len()).step_by(SHARE_BYTES) {
                    let part = body.get(at + 8..at + 12).and_then(|bytes| bytes.try_into().ok());
                    let part = part.map(u32::from_le_bytes).ok_or("a share is cut off")?;
                    sum += u64::from(part);
                    shares.push(Share { op: op(u64_at(at)?)?, part });
                }
                if sum != u64::from(WHOLE) {
                    return Err("the shares of a request do not add up to it");
                }
                Record::Request {
                    kind: kind_from_number(kind).ok_or("a request of no known kind")?,
                    way: Way::from_number(way).ok_or("a request that came in no known way")?,
                    succeeded: succeeded != 0,
                    offset_bytes: u64_at(4)?,
                    len_bytes: u64_at(12)?,
                    started_ns: u64_at(20)?,
                    duration_ns: u64_at(28)?,
                    shares,
                }
            }
            COUNTS => {
                let mut counts = Vec::new();
                for at in (0..body.len()).step_by(9) {
                    let kind = OpKind::from_number(body[at]).ok_or("a count of no known kind")?;
                    counts.push((kind, u64_at(at + 1)?));
                }
                Record::Counts(counts)
            }
            LOST => Record::Lost(u64_at(0)?),
            PROCESS => {
                let (process, name) = body.split_first_chunk().ok_or("a record is too short")?;
                Record::Process { process: u32::from_le_bytes(*process), name: name.to_vec() }
            }
            _ => return Ok(None),
        }))
    }
}

/// The length of the record at the head of these bytes, if all of it is there, and the process that called,
/// if it is that of an operation: for who passes a trace on.
pub fn split(bytes: &[u8]) -> Option<(usize, Option<u32>)> {
    let (&[tag, a, b, c, d], rest) = bytes.split_first_chunk()?;
    let len = u32::from_le_bytes([a, b, c, d]) as usize;
    let body = rest.get(..len)?;
    let id = body.first_chunk().filter(|_| tag == OPERATION);
    let id = id.and_then(|bits| OpId::from_bits(u64::from_le_bytes(*bits)));
    Some((5 + len, id.map(OpId::process)))
}

/// Why a trace cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It is none.
    #[error("not a trace of cffs trace record")]
    NotATrace,
    /// It makes no sense.
    #[error("damaged at byte {at}: {what}")]
    Damaged {
        /// Where.
        at: u64,
        /// The error.
        what: &'static str,
    },
    /// It ends within a record.
    #[error("cut off at byte {at}")]
    CutOff {
        /// Where the last record begins.
        at: u64,
    },
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads a trace, one record at a time.
pub struct Reader<R> {
    inner: R,
    header: Header,
    at: u64,
    body: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// A reader of what `inner` has, which should be buffered.
    ///
    /// # Errors
    ///
    /// [`TraceError::NotATrace`]; those of `inner`.
    pub fn new(mut inner: R) -> Result<Reader<R>, TraceError> {
        let mut head = [0; HEADER_BYTES];
        let got = read_up_to(&mut inner, &mut head)?;
        if got < HEADER_BYTES || head[..8] != *MAGIC {
            return Err(TraceError::NotATrace);
        }
        let number = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|index| head[at + index]);
            u64::from_le_bytes(bytes)
        };
        let header = Header { began_ns: number(8), began_unix_ns: number(16) };
        Ok(Reader { inner, header, at: HEADER_BYTES as u64, body: Vec::new() })
    }

    /// The head of the trace.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The next record; none at the end.
    ///
    /// # Errors
    ///
    /// [`TraceError::Damaged`], [`TraceError::CutOff`], and those of reading. What came before is right.
    pub fn read(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            let at = self.at;
            let damaged = |what| TraceError::Damaged { at, what };
            let mut head = [0; 5];
            match read_up_to(&mut self.inner, &mut head)? {
                0 => return Ok(None),
                5 => {}
                _ => return Err(TraceError::CutOff { at }),
            }
            let [tag, a, b, c, d] = head;
            let len = u32::from_le_bytes([a, b, c, d]) as usize;
            if len > BODY_BYTES_MAX {
                return Err(damaged("a record is too long"));
            }
            // What is not there is not made room for.
            self.body.clear();
            let got = (&mut self.inner).take(len as u64).read_to_end(&mut self.body)?;
            if got < len {
                return Err(TraceError::CutOff { at });
            }
            self.at += 5 + len as u64;
            if let Some(record) = Record::decode(tag, &self.body).map_err(damaged)? {
                return Ok(Some(record));
            }
        }
    }
}

/// Fills the buffer as far as there is something; how far.
fn read_up_to(inner: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match inner.read(&mut buf[got..]) {
            Ok(0) => break,
            Ok(len) => got += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
