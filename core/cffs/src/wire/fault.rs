//! Errors of the volume, as they cross the socket.

use std::io;

use super::{Fields, Result, cut};
use crate::error::Error;
use crate::vfs::errno;

/// The error of a request. The program gets the same variant of [`Error`], as far as it has no contents that
/// only the server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The variant; 0 if the program gets only the error number and the text.
    code: u16,
    errno: u16,
    text: String,
}

/// Makes the error of a code from its text.
type Make = fn(String) -> Error;

/// The code of [`Error::Io`], whose kind is that of the error number.
const IO: u16 = 22;

/// The codes of the variants that a program can distinguish. A code is never given to another variant.
const CODES: [(u16, Make); 23] = [
    (1, Error::Latched),
    (2, Error::Damaged),
    (3, |_| Error::ReadOnly),
    (4, |_| Error::NoSpace),
    (5, |_| Error::NotFound),
    (6, |_| Error::Stale),
    (7, |_| Error::Exists),
    (8, |_| Error::NotDirectory),
    (9, |_| Error::IsDirectory),
    (10, |_| Error::NotEmpty),
    (11, |_| Error::NameTooLong),
    (12, |_| Error::TooLarge),
    (13, |_| Error::TooManyLinks),
    (14, |_| Error::NotPermitted),
    (15, |_| Error::AccessDenied),
    (16, |_| Error::NoAttribute),
    (17, |_| Error::Range),
    (18, |_| Error::NotSupported),
    (19, Error::InUse),
    (20, |_| Error::Loop),
    (21, |_| Error::NoData),
    (23, |_| Error::QuotaExceeded(None)),
    (24, |_| Error::OtherQuota),
];

impl From<&Error> for Fault {
    fn from(error: &Error) -> Fault {
        let text = match error {
            Error::Latched(why) | Error::Damaged(why) => why.clone(),
            Error::Io(error) => error.to_string(),
            error => error.without_advice(),
        };
        let kind = std::mem::discriminant(error);
        let known =
            CODES.iter().find(|(_, make)| std::mem::discriminant(&make(String::new())) == kind);
        let code = match error {
            Error::Io(_) => IO,
            _ => known.map_or(0, |(code, _)| *code),
        };
        Fault { code, errno: errno(error) as u16, text }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match CODES.iter().find(|(code, _)| *code == fault.code) {
            Some((_, make)) => make(fault.text),
            None if fault.code == IO => {
                let kind = io::Error::from_raw_os_error(fault.errno.into()).kind();
                Error::Io(io::Error::new(kind, fault.text))
            }
            None => Error::Answered { errno: fault.errno.into(), text: fault.text },
        }
    }
}

impl Fault {
    /// How many bytes it takes in an answer.
    pub fn bytes(&self) -> usize {
        self.to_bytes().len()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        [&self.code.to_le_bytes()[..], &self.errno.to_le_bytes(), cut(&self.text)].concat()
    }

    pub(super) fn decode(fields: &mut Fields<'_>) -> Result<Fault> {
        Ok(Fault { code: fields.u16()?, errno: fields.u16()?, text: fields.text()? })
    }
}
