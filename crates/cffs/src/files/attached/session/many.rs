//! Many files at once.

use std::cell::Cell;
use std::collections::VecDeque;

use super::super::connection::{Arrived, Asked};
use super::reading::checked_path;
use super::{Remote, unexpected};
use crate::error::Result;
use crate::wire::{Memory, Outcome, Query, READ_BYTES_MAX, Reply, Request, fitting};

/// How many requests are under way: the server carries out one while the program takes the files of another.
const REQUESTS_MAX: usize = 2;

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
        let mut files =
            Files { pending: Vec::new(), too_large: Vec::new(), has_failed: false, visit };
        for position in 0..paths.len() {
            match checked_path(path(&position)) {
                Ok(_) => files.pending.push(position),
                Err(error) => visit(position, Err(error)),
            }
        }
        // In the order of their names, which is about that on the device. They are taken from the end.
        files.pending.sort_unstable_by(|a, b| path(b).cmp(path(a)));
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < REQUESTS_MAX && !files.pending.is_empty() {
                // After an error of a whole request, the next one fails as well, or serves one file.
                let fitting = || fitting(files.pending.iter().rev().map(path));
                let count = if files.has_failed { 1 } else { fitting() };
                let mut positions = files.pending.split_off(files.pending.len() - count);
                positions.reverse();
                let asked = self.ask_many(positions.iter().map(path));
                under_way.push_back((positions, asked));
            }
            let Some((positions, asked)) = under_way.pop_front() else { break };
            files.take(positions, asked.and_then(|asked| self.session.answer(asked)));
        }
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
    /// Those that were not asked for yet.
    pending: Vec<usize>,
    too_large: Vec<usize>,
    /// Whether the last request failed as a whole.
    has_failed: bool,
    visit: &'a dyn Fn(usize, Result<&[u8]>),
}

impl Files<'_> {
    /// Takes the reply for the files at some positions. Those that are missing in it are pending again.
    fn take(&mut self, positions: Vec<usize>, reply: Result<Arrived>) {
        let mut left: Vec<Option<usize>> = positions.into_iter().map(Some).collect();
        let outcomes = reply.and_then(|arrived| self.outcomes(&mut left, &arrived));
        self.has_failed = outcomes.is_err();
        if let Err(error) = outcomes {
            // The others are asked for again, and fail by themselves.
            if let Some(first) = left[0].take() {
                (self.visit)(first, Err(error));
            }
        }
        self.pending.extend(left.into_iter().rev().flatten());
    }

    /// Takes the files of a reply out of those that are left.
    fn outcomes(&mut self, left: &mut [Option<usize>], arrived: &Arrived) -> Result<()> {
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
        if taken == 0 { Err(unexpected()) } else { Ok(()) }
    }
}
