//! Messages and their parts.
//!
//! Every request consists of a header, an argument whose size depends on the opcode, and a payload
//! of names and data. On `/dev/fuse` the three parts are contiguous; on a ring each is in its own
//! buffer, the first two padded. A [`Frame`] represents either.

use zerocopy::FromBytes;

use super::{NodeId, Opcode, Unique, wire};

/// The negotiated features that change how requests are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// `SETXATTR_EXT` is in force.
    pub setxattr_ext: bool,
}

/// Why bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the header, or than the argument of the operation.
    #[error("the message ends within its {0}")]
    Truncated(&'static str),
    /// The length in the header differs from that of the message.
    #[error("the header counts {stated} bytes, the message has {actual}")]
    Length {
        /// The length in the header.
        stated: u32,
        /// The actual length.
        actual: usize,
    },
    /// A name without its NUL.
    #[error("a name is not terminated")]
    Unterminated,
    /// A name that is empty or contains a slash.
    #[error("a name is empty or has a slash")]
    Name,
    /// Bytes after the end of the last part.
    #[error("{0} bytes follow the end of the request")]
    Trailing(usize),
    /// A count or size that disagrees with the bytes that follow.
    #[error("the {0} does not match the bytes that follow")]
    Count(&'static str),
    /// Extensions with inconsistent lengths.
    #[error("the lengths of the extensions are inconsistent")]
    Extensions,
}

/// A message split into its parts, whatever its transport.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub(super) header: wire::InHeader,
    pub(super) argument: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A message from `/dev/fuse`: header, argument and payload are contiguous.
    pub fn contiguous(message: &'a [u8], dialect: Dialect) -> Result<Frame<'a>, Malformed> {
        let (header, body) = read_header(message)?;
        if header.len as usize != message.len() {
            return Err(Malformed::Length { stated: header.len, actual: message.len() });
        }
        let argument_len = argument_len(&header, dialect);
        if body.len() < argument_len {
            return Err(Malformed::Truncated("argument"));
        }
        let (argument, payload) = body.split_at(argument_len);
        Ok(Frame { header, argument, payload })
    }

    /// A message from a ring: the parts are in separate buffers, the first two in areas of fixed
    /// size.
    pub fn split(
        header: &[u8],
        argument: &'a [u8],
        payload: &'a [u8],
        dialect: Dialect,
    ) -> Result<Frame<'a>, Malformed> {
        let (header, _) = read_header(header)?;
        let argument = argument
            .get(..argument_len(&header, dialect))
            .ok_or(Malformed::Truncated("argument"))?;
        Ok(Frame { header, argument, payload })
    }

    /// The number of the request, known even if the rest is [`Malformed`].
    pub fn unique(&self) -> Unique {
        Unique(self.header.unique)
    }

    /// The node that the request is about.
    pub fn node(&self) -> NodeId {
        NodeId(self.header.nodeid)
    }

    /// The process of the caller; zero for the kernel itself and for other PID namespaces.
    pub fn process(&self) -> u32 {
        self.header.pid
    }

    /// The operation, if known.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_number(self.header.opcode)
    }
}

fn read_header(bytes: &[u8]) -> Result<(wire::InHeader, &[u8]), Malformed> {
    wire::InHeader::read_from_prefix(bytes).map_err(|_| Malformed::Truncated("header"))
}

fn argument_len(header: &wire::InHeader, dialect: Dialect) -> usize {
    Opcode::from_number(header.opcode).map_or(0, |code| code.argument_len(dialect.setxattr_ext))
}
