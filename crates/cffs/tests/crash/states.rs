//! The states that a crash may leave, from a record of writes, barriers and syncs.
//!
//! A crash strikes between two barriers: what was written before the first is there, what comes
//! after the second is not, and of what lies between any set of the device's sectors may be there.
//! A sector is written as a whole or not at all; a request is not.

use std::collections::BTreeSet;

use cffs::device::Image;

use crate::Random;
use crate::record::Event;

/// Sectors in motion up to which each is tried alone, and each is left out.
const EACH_MAX: usize = 12;
/// Random subsets beside those.
const SUBSETS: usize = 4;

/// A sector, or a part of one, that a request writes.
#[derive(Clone)]
struct Piece {
    request: usize,
    offset: u64,
    data: Vec<u8>,
}

/// Cuts the requests of a phase where sectors end, and leaves out what changes nothing: with or
/// without it the state is the same.
fn pieces(base: &Image, writes: &[(u64, Vec<u8>)]) -> Vec<Piece> {
    let sector = u64::from(base.geometry().sector_bytes);
    let mut now = base.clone();
    let mut pieces = Vec::new();
    for (request, (offset, data)) in writes.iter().enumerate() {
        let mut at = 0;
        while at < data.len() {
            let start = offset + at as u64;
            let len = ((start / sector + 1) * sector - start).min((data.len() - at) as u64);
            let data = &data[at..at + len as usize];
            let mut old = vec![0; data.len()];
            now.read(start, &mut old).expect("on the device");
            if old != data {
                now.write(start, data).expect("on the device");
                pieces.push(Piece { request, offset: start, data: data.to_vec() });
            }
            at += len as usize;
        }
    }
    pieces
}

/// Which of the pieces survive, for every state to try; none of them is given twice.
fn choices(pieces: &[Piece], random: &mut Random) -> BTreeSet<Vec<bool>> {
    let count = pieces.len();
    let mut choices = BTreeSet::from([vec![false; count], vec![true; count]]);
    let picked: Vec<usize> = if count <= EACH_MAX {
        (0..count).collect()
    } else {
        (0..EACH_MAX).map(|_| random.below(count as u64) as usize).collect()
    };
    for index in picked {
        choices.insert((0..count).map(|i| i == index).collect());
        choices.insert((0..count).map(|i| i != index).collect());
        // The requests before this one are there, and of this one the sectors up to here: it is torn.
        choices.insert((0..count).map(|i| i <= index).collect());
        let torn = pieces[index].request;
        choices.insert((0..count).map(|i| pieces[i].request != torn || i <= index).collect());
    }
    for _ in 0..if count > 1 { SUBSETS } else { 0 } {
        choices.insert((0..count).map(|_| random.below(2) == 0).collect());
    }
    choices
}

fn survive(base: &Image, pieces: &[Piece], choice: &[bool]) -> Image {
    let mut image = base.clone();
    for (piece, _) in pieces.iter().zip(choice).filter(|(_, survives)| **survives) {
        image.write(piece.offset, &piece.data).expect("on the device");
    }
    image
}

/// What was written between two barriers, over what was there before.
struct Phase {
    base: Image,
    writes: Vec<(u64, Vec<u8>)>,
}

impl Phase {
    fn end(&self) -> Image {
        let mut image = self.base.clone();
        for (offset, data) in &self.writes {
            image.write(*offset, data).expect("on the device");
        }
        image
    }

    fn images(&self, random: &mut Random) -> Vec<Image> {
        let pieces = pieces(&self.base, &self.writes);
        if pieces.is_empty() {
            return Vec::new();
        }
        let choices = choices(&pieces, random);
        choices.iter().map(|choice| survive(&self.base, &pieces, choice)).collect()
    }
}

/// Follows a record, and yields the states that a crash could leave at each point of it.
pub struct Crashes {
    /// The phases since the last sync; the last one is still being written.
    phases: Vec<Phase>,
}

impl Crashes {
    pub fn new(base: Image) -> Crashes {
        Crashes { phases: vec![Phase { base, writes: Vec::new() }] }
    }

    /// Takes the next event; returns the states of the phase that it ends.
    pub fn follow(&mut self, event: Event, random: &mut Random) -> Vec<Image> {
        let last = self.phases.last_mut().expect("a phase");
        let is_sync = matches!(event, Event::Sync);
        if let Some(written) = event.written() {
            last.writes.push(written);
            return Vec::new();
        }
        let images = last.images(random);
        let next = Phase { base: last.end(), writes: Vec::new() };
        if is_sync {
            self.phases.clear();
        }
        self.phases.push(next);
        images
    }

    /// The states that a crash could leave now: of every phase that was not synced.
    pub fn now(&self, random: &mut Random) -> Vec<Image> {
        self.phases.iter().flat_map(|phase| phase.images(random)).collect()
    }

    /// One state that a crash could have left anywhere in a record.
    pub fn anywhere(base: Image, events: Vec<Event>, random: &mut Random) -> Image {
        let mut phases = vec![Phase { base, writes: Vec::new() }];
        for event in events {
            let last = phases.last_mut().expect("a phase");
            match event.written() {
                Some(written) => last.writes.push(written),
                None => {
                    let base = last.end();
                    phases.push(Phase { base, writes: Vec::new() });
                }
            }
        }
        let phase = phases.swap_remove(random.below(phases.len() as u64) as usize);
        let mut images = phase.images(random);
        match images.len() as u64 {
            0 => phase.base,
            count => images.swap_remove(random.below(count) as usize),
        }
    }
}
