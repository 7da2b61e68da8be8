//! Tickets: each grants one call on a directory with the rights of a user, soon after it was made.

use std::io;
use std::time::{Duration, Instant};

use cffs::device::Access;
use cffs::error::{Error, Result};
use cffs::units::InodeNo;
use cffs::wire::Ticket;

use super::{Asking, is_owner};
use crate::access::User;

/// The most unused tickets, of all users and of one.
const TICKETS_MAX: usize = 64;
const TICKETS_OF_USER_MAX: usize = 8;
/// The number of these that are reserved for root and the user who mounted the volume.
const TICKETS_OF_OWNERS: usize = 8;
/// How long a ticket can be used.
const LIFETIME: Duration = Duration::from_secs(10);

/// A directory by number and generation. A ticket holds no reference: it must not keep a directory that was
/// removed.
pub(super) type Directory = (InodeNo, u32);

/// The meaning of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    /// The number of the program's request, and its time.
    pub number: u64,
    pub asked: Instant,
    pub directory: Directory,
    pub user: User,
    /// Whether the program sees a mount inside of a volume.
    pub are_covered: bool,
    /// Whether the program may make changes.
    pub access: Access,
}

struct Entry {
    number: u64,
    uid: u32,
    made: Instant,
    answer: std::result::Result<(Ticket, Granted), &'static str>,
}

/// The tickets that were not used.
#[derive(Default)]
pub(super) struct Tickets(Vec<Entry>);

impl Tickets {
    /// Makes a ticket, or records why the user gets none.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if too many are unused.
    pub fn add(
        &mut self,
        directory: Directory,
        number: u64,
        uid: u32,
        asking: std::result::Result<Asking, &'static str>,
        now: Instant,
    ) -> Result<()> {
        self.check_room(uid, now)?;
        let answer = match asking {
            Ok(Asking { user, are_covered, access }) => {
                let granted = Granted { number, asked: now, directory, user, are_covered, access };
                Ok((random()?, granted))
            }
            Err(why) => Err(why),
        };
        self.0.push(Entry { number, uid, made: now, answer });
        Ok(())
    }

    /// Forgets the tickets that are too old.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if too many others are unused.
    pub fn check_room(&mut self, uid: u32, now: Instant) -> Result<()> {
        self.0.retain(|entry| now.duration_since(entry.made) < LIFETIME);
        let own = self.0.iter().filter(|entry| entry.uid == uid).count();
        let most = if is_owner(uid) { TICKETS_MAX } else { TICKETS_MAX - TICKETS_OF_OWNERS };
        if own >= TICKETS_OF_USER_MAX || self.0.len() >= most {
            return Err(Error::InUse(String::from("too many tickets are unused")));
        }
        Ok(())
    }

    /// The ticket of a user with this number, or why there is none. `None` if it was used, is too old, or
    /// never was.
    pub fn show(
        &self,
        number: u64,
        uid: u32,
        now: Instant,
    ) -> Option<std::result::Result<Ticket, &'static str>> {
        let is_it = |entry: &&Entry| {
            entry.number == number && entry.uid == uid && now.duration_since(entry.made) < LIFETIME
        };
        let entry = self.0.iter().find(is_it)?;
        Some(entry.answer.as_ref().map(|(ticket, _)| *ticket).map_err(|why| *why))
    }

    /// Uses a ticket: it cannot be used again. The peer is the user and the group of a session.
    pub fn redeem(&mut self, ticket: &Ticket, peer: (u32, u32), now: Instant) -> Option<Granted> {
        let is_it = |entry: &Entry| match &entry.answer {
            Ok((known, granted)) => {
                is_equal(known, ticket)
                    && (granted.user.uid, granted.user.gid) == peer
                    && now.duration_since(entry.made) < LIFETIME
            }
            Err(_) => false,
        };
        let at = self.0.iter().position(is_it)?;
        self.0.swap_remove(at).answer.ok().map(|(_, granted)| granted)
    }
}

/// Compares in the same time wherever the difference is.
fn is_equal(a: &Ticket, b: &Ticket) -> bool {
    a.iter().zip(b).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}

/// A secret.
pub(super) fn random() -> io::Result<Ticket> {
    let mut secret = [0; 16];
    rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    Ok(secret)
}
