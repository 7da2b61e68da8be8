//! The answer to a request for a ticket, as the value of an extended attribute.

use super::{BadMessage, Result, Ticket};

/// The attribute that a program sets to a random number to request a ticket. The answer is the value of the
/// attribute with a dot and the number appended.
pub const ATTRIBUTE: &str = "system.cffs.attach";

/// The suffix of an attribute from which a program reads a ticket for reading, without a request:
/// `system.cffs.attach.NUMBER.read`. The kernel sets no attribute on a read-only mount.
pub const TO_READ: &str = ".read";

/// The answer to a request for a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invitation {
    /// The abstract name of the socket, and the ticket.
    Ticket { socket: String, ticket: Ticket },
    /// Why the program may not attach.
    Refused(String),
}

impl Invitation {
    /// As text: `ticket`, the name and hexadecimal digits, or `refused` and the reason.
    pub fn encode(&self) -> Vec<u8> {
        let text = match self {
            Invitation::Ticket { socket, ticket } => format!("ticket {socket} {}", hex(ticket)),
            Invitation::Refused(why) => format!("refused {why}"),
        };
        text.into_bytes()
    }

    /// # Errors
    ///
    /// [`BadMessage`] for everything that [`encode`](Invitation::encode) does not return.
    pub fn decode(bytes: &[u8]) -> Result<Invitation> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadMessage)?;
        if let Some(why) = text.strip_prefix("refused ") {
            return Ok(Invitation::Refused(why.to_owned()));
        }
        let rest = text.strip_prefix("ticket ").ok_or(BadMessage)?;
        let (socket, ticket) = rest.split_once(' ').ok_or(BadMessage)?;
        Ok(Invitation::Ticket { socket: socket.to_owned(), ticket: from_hex(ticket)? })
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Result<Ticket> {
    let mut ticket = Ticket::default();
    let is_hex =
        text.len() == 2 * ticket.len() && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hex {
        return Err(BadMessage);
    }
    for (at, byte) in ticket.iter_mut().enumerate() {
        let digits = text.get(2 * at..2 * at + 2).ok_or(BadMessage)?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| BadMessage)?;
    }
    Ok(ticket)
}
