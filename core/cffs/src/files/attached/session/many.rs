//! Many files at once.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::super::connection::{Arrived, Asked};
use super::reading::checked_path;
use super::{Remote, unexpected};
use crate::error::Result;
use crate::wire::{Memory, Outcome, Query, READ_BYTES_MAX, Reply, Request, fitting};

/// The number of requests in flight: the server carries out one while the program takes the files of another.
const REQUESTS_MAX: usize = 2;
/// How many files the first request of a session names.
pub(super) const FILES_AT_FIRST: usize = 64;

impl Remote {
    /// The contents of a file at a path; `None` if it is too large for one request.
    pub fn read_small(&self, path: &[u8]) -> Option<Result<Vec<u8>>> {
        let read = Cell::new(None);
        self.read_many(&[path], &|_, contents| read.set(Some(contents.map(<[u8]>::to_vec))));
        read.into_inner()
    }

    /// Reads whole files at paths from this directory on, and passes the contents of each, or why it could
    /// not be read, to `visit` with its position. Returns the positions of those that are too large for this.
    pub fn read_many<P: AsRef<[u8]>>(
        &self,
        paths: &[P],
        visit: &dyn Fn(usize, Result<&[u8]>),
    ) -> Vec<usize> {
        let path = |position: &usize| paths[*position].as_ref();
        let (pending, too_large) = Default::default();
        let at_once = self.session.files_at_once.load(Ordering::Relaxed);
        let mut files = Files { pending, too_large, at_once, visit };
        for position in 0..paths.len() {
            match checked_path(path(&position)) {
                Ok(_) => files.pending.push(position),
                Err(error) => visit(position, Err(error)),
            }
        }
        // In the order of their names, which is about that of the device. Taken from the end.
        files.pending.sort_unstable_by(|a, b| path(b).cmp(path(a)));
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < REQUESTS_MAX && !files.pending.is_empty() {
                let count = fitting(files.pending.iter().rev().take(files.at_once).map(path));
                let mut positions = files.pending.split_off(files.pending.len() - count);
                positions.reverse();
                let asked = self.ask_many(positions.iter().map(path));
                under_way.push_back((positions, asked));
            }
            let Some((positions, asked)) = under_way.pop_front() else { break };
            files.take(positions, asked.and_then(|asked| self.session.answer(asked)));
        }
        self.session.files_at_once.store(files.at_once, Ordering::Relaxed);
        files.too_large
    }

    fn ask_many<'p>(&self, paths: impl Iterator<Item = &'p [u8]>) -> Result<Asked> {
        let mut connection = self.session.connection()?;
        let contents = connection.reserve(READ_BYTES_MAX as u32)?;
        let paths = paths.map(<[u8]>::to_vec).collect();
        let query = Query::ReadMany { dir: self.handle, paths, contents };
        let asked = connection.ask(&Request::Query(query), contents)?;
        connection.send()?;
        Ok(asked)
    }
}

/// The files of a call of [`Remote::read_many`], by their positions.
struct Files<'a> {
    /// Files that were not requested yet.
    pending: Vec<usize>,
    too_large: Vec<usize>,
    /// How many files a request names: about as many as fit in a reply, since the paths of the others are
    /// sent again.
    at_once: usize,
    visit: &'a dyn Fn(usize, Result<&[u8]>),
}

impl Files<'_> {
    /// Takes the reply for the files at some positions. Those that are missing in it are pending again.
    fn take(&mut self, positions: Vec<usize>, reply: Result<Arrived>) {
        let asked = positions.len();
        let mut left: Vec<Option<usize>> = positions.into_iter().map(Some).collect();
        match reply.and_then(|arrived| self.outcomes(&mut left, &arrived)) {
            Ok(taken) if taken == asked => self.at_once = (2 * taken).max(self.at_once),
            // A few more than fitted, so that the number grows when the files become smaller.
            Ok(taken) => self.at_once = taken + taken / 8 + 1,
            Err(error) => {
                // The others are asked for again, and fail by themselves.
                self.at_once = 1;
                if let Some(first) = left[0].take() {
                    (self.visit)(first, Err(error));
                }
            }
        }
        self.pending.extend(left.into_iter().rev().flatten());
    }

    /// Removes the files of a reply from the remaining ones, and returns their number.
    fn outcomes(&mut self, left: &mut [Option<usize>], arrived: &Arrived) -> Result<usize> {
        let Reply::Many(outcomes) = &arrived.reply else { return Err(unexpected()) };
        let mut taken = 0;
        for (at, outcome) in outcomes {
            let Some(position) = left.get_mut(usize::from(*at)).and_then(Option::take) else {
                continue;
            };
            taken += 1;
            match outcome {
                Outcome::Contents(Memory { offset, len }) => {
                    let begin = offset.checked_sub(arrived.offset).map(|begin| begin as usize);
                    let contents = begin.and_then(|begin| arrived.contents.get(begin..));
                    let contents = contents.and_then(|contents| contents.get(..*len as usize));
                    (self.visit)(position, contents.ok_or_else(unexpected));
                }
                Outcome::TooLarge => self.too_large.push(position),
                Outcome::Fault(fault) => (self.visit)(position, Err(fault.clone().into())),
            }
        }
        if taken == 0 { Err(unexpected()) } else { Ok(taken) }
    }
}
