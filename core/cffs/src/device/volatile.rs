//! A device with a write cache, and the states in which a crash can leave it.
//!
//! Writes since the last sync may be lost. The cache knows the writes of each **phase**,
//! the time between two barriers:
//!
//! ```text
//!   sync        barrier       barrier          now
//!    |  phase 0    |  phase 1    |   phase 2    |
//! ```
//!
//! A crash strikes in one phase: all writes of the phases before it survive, none of those after
//! it, and of the phase itself any subset of the sectors written. Those are all the states that
//! [`BlockDevice`]'s contract allows, so a file system that recovers from each of them is safe on
//! any device that keeps the contract.
//!
//! A discard is a write of zeros that may or may not have happened.

use std::io::{self, IoSlice};

use parking_lot::Mutex;

use super::memory::Image;
use super::seed::Seeded;
use super::{BlockDevice, Geometry, gather, total_len};

#[cfg(test)]
mod tests;

/// One sector of a pending write, or the part of a sector that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingSector {
    /// The write, counted from the start of its phase.
    pub write: usize,
    /// The first byte on the device.
    pub offset_bytes: u64,
    /// How many bytes; they never cross the end of a sector.
    pub len_bytes: u64,
}

struct PendingWrite {
    offset_bytes: u64,
    len_bytes: u64,
    /// `None` for a discard.
    data: Option<Vec<u8>>,
}

impl PendingWrite {
    /// The write's pieces, cut where sectors end.
    fn sectors(&self, write: usize, sector_bytes: u64) -> impl Iterator<Item = PendingSector> {
        let end = self.offset_bytes + self.len_bytes;
        let mut at = self.offset_bytes;
        std::iter::from_fn(move || {
            let start = at;
            at = end.min((start / sector_bytes + 1) * sector_bytes);
            (start < end).then_some(PendingSector {
                write,
                offset_bytes: start,
                len_bytes: at - start,
            })
        })
    }

    fn put(&self, piece: PendingSector, image: &mut Image) -> io::Result<()> {
        match &self.data {
            None => image.zero(piece.offset_bytes, piece.len_bytes),
            Some(data) => {
                let from = (piece.offset_bytes - self.offset_bytes) as usize;
                image.write(piece.offset_bytes, &data[from..from + piece.len_bytes as usize])
            }
        }
    }
}

struct State {
    /// The contents that the program sees.
    current: Image,
    /// The durable contents.
    durable: Image,
    /// The writes between the two. The last phase is the one that is being written.
    phases: Vec<Vec<PendingWrite>>,
}

/// A device in memory whose writes are lost unless they are synced.
pub struct VolatileDevice {
    geometry: Geometry,
    state: Mutex<State>,
}

impl VolatileDevice {
    /// A device on which `image` is durable.
    pub fn new(image: Image) -> VolatileDevice {
        let state =
            State { current: image.clone(), durable: image.clone(), phases: vec![Vec::new()] };
        VolatileDevice { geometry: image.geometry(), state: Mutex::new(state) }
    }

    /// The contents that the program sees: the image after an orderly shutdown.
    pub fn current(&self) -> Image {
        self.state.lock().current.clone()
    }

    /// The contents that survive every crash.
    pub fn durable(&self) -> Image {
        self.state.lock().durable.clone()
    }

    /// The sectors that each phase since the last sync has written, in the order of writing.
    pub fn pending(&self) -> Vec<Vec<PendingSector>> {
        let state = self.state.lock();
        let sector_bytes = u64::from(self.geometry.sector_bytes);
        let sectors = |(number, write): (usize, &PendingWrite)| {
            write.sectors(number, sector_bytes).collect::<Vec<_>>()
        };
        state
            .phases
            .iter()
            .map(|phase| phase.iter().enumerate().flat_map(sectors).collect())
            .collect()
    }

    /// The image after a crash in `phase` in which only the sectors chosen by `survives` survive of that
    /// phase. The device itself is not changed.
    ///
    /// Fails if there is no such phase.
    pub fn crash(
        &self,
        phase: usize,
        mut survives: impl FnMut(PendingSector) -> bool,
    ) -> io::Result<Image> {
        let state = self.state.lock();
        let sector_bytes = u64::from(self.geometry.sector_bytes);
        let mut image = state.durable.clone();
        let Some(struck) = state.phases.get(phase) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no phase {phase}: there are {}", state.phases.len()),
            ));
        };
        for write in state.phases[..phase].iter().flatten() {
            for piece in write.sectors(0, sector_bytes) {
                write.put(piece, &mut image)?;
            }
        }
        for (number, write) in struck.iter().enumerate() {
            for piece in write.sectors(number, sector_bytes) {
                if survives(piece) {
                    write.put(piece, &mut image)?;
                }
            }
        }
        Ok(image)
    }

    /// An image that a crash may leave, chosen by `seed`.
    ///
    /// The choice favours the states in which programs are wrong: one write missing, one write
    /// alone, one write torn. Half of the seeds strike in the last phase.
    pub fn crash_seeded(&self, seed: u64) -> io::Result<Image> {
        let mut chance = Seeded::new(seed);
        let writes: Vec<u64> =
            self.state.lock().phases.iter().map(|phase| phase.len() as u64).collect();
        let last = writes.len() - 1;
        let phase =
            if chance.below(2) == 0 { last } else { chance.below(writes.len() as u64) as usize };
        let chosen = chance.below(writes[phase].max(1)) as usize;
        match chance.below(6) {
            0 => self.crash(phase, |_| false),
            1 => self.crash(phase, |sector| sector.write != chosen),
            2 => self.crash(phase, |sector| sector.write == chosen),
            3 => self.crash(phase, |sector| sector.write < chosen),
            4 => self.crash(phase, |sector| {
                sector.write < chosen || (sector.write == chosen && chance.below(2) == 0)
            }),
            _ => self.crash(phase, |_| chance.below(2) == 0),
        }
    }

    fn write(&self, write: PendingWrite) -> io::Result<()> {
        self.geometry.check(write.offset_bytes, write.len_bytes)?;
        let mut state = self.state.lock();
        match &write.data {
            None => state.current.zero(write.offset_bytes, write.len_bytes)?,
            Some(data) => state.current.write(write.offset_bytes, data)?,
        }
        debug_assert!(!state.phases.is_empty(), "a phase is always being written");
        if let Some(phase) = state.phases.last_mut() {
            phase.push(write);
        }
        Ok(())
    }
}

impl BlockDevice for VolatileDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.state.lock().current.read(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.write(PendingWrite {
            offset_bytes: offset,
            len_bytes: total_len(bufs),
            data: Some(gather(bufs)),
        })
    }

    fn barrier(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.phases.last().is_some_and(|phase| !phase.is_empty()) {
            state.phases.push(Vec::new());
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.durable = state.current.clone();
        state.phases = vec![Vec::new()];
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write(PendingWrite { offset_bytes: offset, len_bytes: len, data: None })
    }
}
