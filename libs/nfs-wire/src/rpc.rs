//! Remote procedure calls, version 2 (RFC 5531): caller and procedure of a call, and heads of replies.

use crate::record;
use crate::xdr::{Malformed, Reader, Result, Writer};

/// The most groups in `AUTH_SYS` credentials.
pub const GROUPS_MAX: u32 = 16;

const VERSION: u32 = 2;
const CALL: u32 = 0;
const REPLY: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;
const AUTH_BYTES_MAX: u32 = 400;
const MACHINE_NAME_BYTES_MAX: u32 = 255;

/// The caller's identity, as the caller states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// No identity.
    None,
    /// A user of a UNIX system.
    Sys {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// The other groups.
        groups: Vec<u32>,
    },
    /// An unsupported kind of credentials.
    Unknown(u32),
}

/// A call, up to its arguments.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The caller's transaction number, which the reply repeats.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// The caller's credentials.
    pub credentials: Credentials,
    /// The arguments.
    pub arguments: &'a [u8],
}

/// Why a message is not a call that can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadCall {
    /// It is no call, or ends within its head: no answer is possible.
    NoCall(Malformed),
    /// Another version of RPC.
    RpcVersion {
        /// The number of the call.
        xid: u32,
    },
    /// The credentials are invalid.
    Credentials {
        /// The number of the call.
        xid: u32,
    },
}

impl<'a> Call<'a> {
    /// Decodes the head of a call.
    ///
    /// # Errors
    ///
    /// [`BadCall`], which determines the answer.
    pub fn decode(message: &'a [u8]) -> std::result::Result<Call<'a>, BadCall> {
        let mut reader = Reader::new(message);
        let (xid, kind) = (|| Ok((reader.u32()?, reader.u32()?)))().map_err(BadCall::NoCall)?;
        if kind != CALL {
            return Err(BadCall::NoCall(Malformed::Discriminant(kind)));
        }
        if reader.u32().map_err(BadCall::NoCall)? != VERSION {
            return Err(BadCall::RpcVersion { xid });
        }
        let numbers = (|| Ok([reader.u32()?, reader.u32()?, reader.u32()?]))();
        let [program, version, procedure] = numbers.map_err(BadCall::NoCall)?;
        let bad = |_| BadCall::Credentials { xid };
        let credentials = credentials(&mut reader).map_err(bad)?;
        // The verifier is not used.
        reader.u32().and_then(|_| reader.opaque(AUTH_BYTES_MAX)).map_err(bad)?;
        Ok(Call { xid, program, version, procedure, credentials, arguments: reader.rest() })
    }
}

fn credentials(reader: &mut Reader<'_>) -> Result<Credentials> {
    let flavor = reader.u32()?;
    let body = reader.opaque(AUTH_BYTES_MAX)?;
    match flavor {
        AUTH_NONE => Ok(Credentials::None),
        AUTH_SYS => {
            let mut body = Reader::new(body);
            body.u32()?;
            body.opaque(MACHINE_NAME_BYTES_MAX)?;
            let (uid, gid) = (body.u32()?, body.u32()?);
            let count = body.len(GROUPS_MAX)?;
            let groups = (0..count).map(|_| body.u32()).collect::<Result<_>>()?;
            body.end()?;
            Ok(Credentials::Sys { uid, gid, groups })
        }
        other => Ok(Credentials::Unknown(other)),
    }
}

/// The status at the head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The results follow.
    Success,
    /// The server has no such program.
    NoProgram,
    /// The program only has versions from the first to the second.
    NoVersion(u32, u32),
    /// The program has no such procedure.
    NoProcedure,
    /// The arguments cannot be decoded.
    GarbageArguments,
    /// The server cannot execute it.
    SystemError,
    /// The server supports another version of RPC.
    RpcMismatch,
    /// The credentials are invalid.
    BadCredentials,
    /// Credentials of this kind, or the caller's address, are not sufficient.
    TooWeak,
}

/// Begins the reply to a call, with room for the header of its record before it.
pub fn reply(xid: u32, verdict: Verdict) -> Writer {
    const ACCEPTED: u32 = 0;
    const DENIED: u32 = 1;
    let mut w = Writer::after(vec![0; record::HEADER_BYTES]);
    w.u32(xid);
    w.u32(REPLY);
    let accepted = |w: &mut Writer, status| {
        w.u32(ACCEPTED);
        w.u32(AUTH_NONE);
        w.u32(0);
        w.u32(status);
    };
    match verdict {
        Verdict::Success => accepted(&mut w, 0),
        Verdict::NoProgram => accepted(&mut w, 1),
        Verdict::NoVersion(low, high) => {
            accepted(&mut w, 2);
            w.u32(low);
            w.u32(high);
        }
        Verdict::NoProcedure => accepted(&mut w, 3),
        Verdict::GarbageArguments => accepted(&mut w, 4),
        Verdict::SystemError => accepted(&mut w, 5),
        Verdict::RpcMismatch => [DENIED, 0, VERSION, VERSION].into_iter().for_each(|v| w.u32(v)),
        Verdict::BadCredentials => [DENIED, 1, 1].into_iter().for_each(|v| w.u32(v)),
        Verdict::TooWeak => [DENIED, 1, 5].into_iter().for_each(|v| w.u32(v)),
    }
    w
}

#[cfg(test)]
mod tests;
