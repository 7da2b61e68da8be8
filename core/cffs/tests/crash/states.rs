//! The states that a crash may leave, from a record of writes, barriers and syncs.
//!
//! A crash happens between two barriers: writes before the first barrier are on the device, writes after the
//! second are not, and of the writes between, any set of sectors may be. A sector is written as a whole or
//! not at all; a request is not.
//!
//! With two disks, barriers and syncs of one order nothing on the other: a crash may leave each disk in any
//! of its states, independent of the other.

use std::collections::BTreeSet;

use cffs::device::Image;

use crate::record::{Disk, Event, HOME};
use cffs_testing::random::Random;

/// The maximum number of sectors in flight of which each is tried alone, and each is left out.
const EACH_MAX: usize = 12;
/// The number of random subsets in addition to those.
const SUBSETS: usize = 4;

/// A sector, or a part of one, that a request writes.
#[derive(Clone)]
struct Piece {
    request: usize,
    offset: u64,
    data: Vec<u8>,
}

/// Cuts the requests of a phase at sector boundaries, and leaves out pieces that change nothing.
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

/// The surviving pieces of every state to try; no state is returned twice.
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
        // A torn request: the requests before it survive, and its sectors up to this one.
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

/// The writes between two barriers, over the image before.
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

    /// One state of the phase: no piece survives, all pieces, or a random subset.
    fn any_image(&self, random: &mut Random) -> Image {
        match random.below(3) {
            0 => self.base.clone(),
            1 => self.end(),
            _ => {
                let pieces = pieces(&self.base, &self.writes);
                let choice: Vec<bool> = pieces.iter().map(|_| random.below(2) == 0).collect();
                survive(&self.base, &pieces, &choice)
            }
        }
    }
}

/// The phases of a disk since its last sync; the last one is still being written.
struct Phases(Vec<Phase>);

impl Phases {
    fn new(base: Image) -> Phases {
        Phases(vec![Phase { base, writes: Vec::new() }])
    }

    fn last(&mut self) -> &mut Phase {
        self.0.last_mut().expect("a phase")
    }

    fn follow(&mut self, event: Event) {
        let is_sync = matches!(event, Event::Sync);
        match event.written() {
            Some(written) => self.last().writes.push(written),
            None => {
                let next = Phase { base: self.last().end(), writes: Vec::new() };
                if is_sync {
                    self.0.clear();
                }
                self.0.push(next);
            }
        }
    }

    /// One state that a crash could leave now.
    fn any_image(&self, random: &mut Random) -> Image {
        self.0[random.below(self.0.len() as u64) as usize].any_image(random)
    }
}

/// Follows a record, and yields the states that a crash could leave at each point: an image of each disk.
pub struct Crashes {
    disks: Vec<Phases>,
}

impl Crashes {
    pub fn new(base: &[Image]) -> Crashes {
        Crashes { disks: base.iter().cloned().map(Phases::new).collect() }
    }

    /// Takes the next event of a disk; returns the states of the phase that it ends.
    pub fn follow(&mut self, disk: Disk, event: Event, random: &mut Random) -> Vec<Vec<Image>> {
        let states = match event.ends_phase() {
            true => {
                let images = self.disks[disk].last().images(random);
                images.into_iter().map(|image| self.with_others(disk, image, random)).collect()
            }
            false => Vec::new(),
        };
        self.disks[disk].follow(event);
        states
    }

    /// The states that a crash could leave now: of every phase that was not synced.
    pub fn now(&self, random: &mut Random) -> Vec<Vec<Image>> {
        let mut states = Vec::new();
        for (disk, phases) in self.disks.iter().enumerate() {
            let images: Vec<Image> =
                phases.0.iter().flat_map(|phase| phase.images(random)).collect();
            states.extend(images.into_iter().map(|image| self.with_others(disk, image, random)));
        }
        states
    }

    /// One state that a crash could have left anywhere in a record.
    pub fn anywhere(base: &[Image], events: Vec<(Disk, Event)>, random: &mut Random) -> Vec<Image> {
        let mut crashes = Crashes::new(base);
        let ends = events.iter().filter(|(_, event)| event.ends_phase()).count() as u64;
        let mut ends_before = random.below(ends + 1);
        let mut struck = HOME;
        for (disk, event) in events {
            if event.ends_phase() {
                if ends_before == 0 {
                    struck = disk;
                    break;
                }
                ends_before -= 1;
            }
            crashes.disks[disk].follow(event);
        }
        let phase = crashes.disks[struck].last();
        let mut images = phase.images(random);
        let image = match images.len() as u64 {
            0 => phase.base.clone(),
            count => images.swap_remove(random.below(count) as usize),
        };
        crashes.with_others(struck, image, random)
    }

    /// States with this image of one disk, and any image that the other may have by now.
    fn with_others(&self, disk: Disk, image: Image, random: &mut Random) -> Vec<Image> {
        let mut images: Vec<Image> = Vec::new();
        for (other, phases) in self.disks.iter().enumerate() {
            images.push(match other == disk {
                true => image.clone(),
                false => phases.any_image(random),
            });
        }
        images
    }
}
