//! fsck's access to the device: batched reads, and changes that wait in memory.
//!
//! Offers reading of many places at once (in the order of the disk, neighbours in one request, by several
//! threads) and an overlay: later reads see the changes of a repair, which only [`Disk::commit`] writes to
//! the device. Stands on `device`.
//!
//! Invariants: a failed request is repeated sector by sector, so that only the sectors that cannot be read
//! are missing; they read as zeros, which no codec accepts, and are remembered. Once the device does not
//! answer, or lacks data that can be restored, nothing more is read or written, and [`Disk::check_reached`]
//! fails: unread sectors are not lost sectors. It fails as well, and nothing is written, once the bytes of
//! something that can be put back contradict the format ([`Disk::contradict`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::device::{BlockDevice, Failure};
use crate::error::Corruption;
use crate::format::superblock::SUPERBLOCK_BYTES;

/// The grain of the overlay: the smallest sector.
const PIECE_BYTES: usize = 512;
/// Reads within this distance are joined into one request.
const GAP_BYTES: u64 = 32 << 10;
/// The longest request that is put together from several.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// The bytes of contents that are read before any of them is checked.
pub(super) const BATCH_BYTES: usize = 4 << 20;

/// Counts of requests to the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DiskCounts {
    pub read_requests: u64,
    pub read_bytes: u64,
    pub write_requests: u64,
    pub write_bytes: u64,
}

/// A place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub offset: u64,
    pub len: usize,
}

impl Place {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len as u64)
    }
}

pub(super) struct Disk<'d> {
    device: &'d dyn BlockDevice,
    threads: usize,
    overlay: BTreeMap<u64, Box<[u8]>>,
    /// Pieces of the overlay that are written before and after the others.
    first: BTreeSet<u64>,
    last: BTreeSet<u64>,
    unreadable: BTreeSet<u64>,
    /// Why the device did not answer.
    unreachable: Option<io::Error>,
    /// The first error about changed bytes that can be put back.
    changed: Option<io::Error>,
    counts: DiskCounts,
}

impl<'d> Disk<'d> {
    pub fn new(device: &'d dyn BlockDevice, threads: usize) -> Disk<'d> {
        Disk {
            device,
            threads: threads.max(1),
            overlay: BTreeMap::new(),
            first: BTreeSet::new(),
            last: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            unreachable: None,
            changed: None,
            counts: DiskCounts::default(),
        }
    }

    pub fn size_bytes(&self) -> u64 {
        self.device.geometry().size_bytes
    }

    pub fn counts(&self) -> DiskCounts {
        self.counts
    }

    /// Whether a repair changed anything that is not yet on the device.
    pub fn is_changed(&self) -> bool {
        !self.overlay.is_empty()
    }

    pub fn unreadable_sectors(&self) -> usize {
        self.unreadable.len()
    }

    /// Whether a sector of the place could not be read when it was read before.
    pub fn is_unreadable(&self, place: Place) -> bool {
        let first = place.offset.saturating_sub(self.sector_bytes() - 1);
        let mut sectors = self.unreadable.range(first..place.end());
        self.unreachable.is_some() || sectors.next().is_some()
    }

    fn sector_bytes(&self) -> u64 {
        u64::from(self.device.geometry().sector_bytes).max(PIECE_BYTES as u64)
    }

    /// Reads one place.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.read_many(&[Place { offset, len }]).pop().unwrap_or_default()
    }

    /// Reads the places, whatever their order, and returns their bytes in the order of the call.
    pub fn read_many(&mut self, places: &[Place]) -> Vec<Vec<u8>> {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_unstable_by_key(|index| places[*index].offset);
        let mut spans: Vec<(Place, Vec<usize>)> = Vec::new();
        for index in order {
            let place = places[index];
            match spans.last_mut() {
                Some((span, members))
                    if place.offset <= span.end().saturating_add(GAP_BYTES)
                        && place.end() - span.offset <= REQUEST_BYTES_MAX =>
                {
                    let end = span.end().max(place.end());
                    span.len = (end - span.offset) as usize;
                    members.push(index);
                }
                _ => spans.push((place, vec![index])),
            }
        }
        let requests: Vec<Place> = spans.iter().map(|(span, _)| *span).collect();
        let known = self.unreadable.clone();
        let blobs = self.read_spans(&requests);
        if self.unreadable.len() > known.len() {
            // The gaps between the places are not needed.
            let sector = self.sector_bytes();
            let is_asked = |at: u64| places.iter().any(|p| p.offset < at + sector && at < p.end());
            self.unreadable.retain(|at| known.contains(at) || is_asked(*at));
        }
        let mut result = vec![Vec::new(); places.len()];
        for ((span, members), blob) in spans.iter().zip(blobs) {
            if let [only] = members[..] {
                result[only] = blob;
                continue;
            }
            for index in members {
                let place = places[*index];
                let from = (place.offset - span.offset) as usize;
                result[*index] = blob[from..from + place.len].to_vec();
            }
        }
        result
    }

    fn read_spans(&mut self, spans: &[Place]) -> Vec<Vec<u8>> {
        if self.unreachable.is_some() {
            return spans.iter().map(|span| vec![0; span.len]).collect();
        }
        self.counts.read_requests += spans.len() as u64;
        self.counts.read_bytes += spans.iter().map(|span| span.len as u64).sum::<u64>();
        let mut blobs: Vec<io::Result<Vec<u8>>> = if spans.len() < 2 || self.threads < 2 {
            spans.iter().map(|span| read_span(self.device, *span)).collect()
        } else {
            self.read_parallel(spans)
        };
        spans
            .iter()
            .zip(&mut blobs)
            .map(|(span, blob)| {
                let blob = std::mem::replace(blob, Ok(Vec::new()));
                let mut bytes = blob.unwrap_or_else(|error| self.read_again(*span, error));
                self.overlay_onto(*span, &mut bytes);
                bytes
            })
            .collect()
    }

    fn read_parallel(&self, spans: &[Place]) -> Vec<io::Result<Vec<u8>>> {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(Vec::with_capacity(spans.len()));
        let device = self.device;
        let is_reached = AtomicBool::new(true);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(spans.len()) {
                scope.spawn(|| {
                    while let Some(span) = spans.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let blob = match is_reached.load(Ordering::Relaxed) {
                            true => read_span(device, *span),
                            false => Err(io::ErrorKind::HostUnreachable.into()),
                        };
                        if blob.as_ref().is_err_and(is_unreachable) {
                            is_reached.store(false, Ordering::Relaxed);
                        }
                        results.lock().push((span.offset, blob));
                    }
                });
            }
        });
        let mut results = results.into_inner();
        debug_assert_eq!(results.len(), spans.len(), "a span was not read");
        results.sort_unstable_by_key(|(offset, _)| *offset);
        results.into_iter().map(|(_, blob)| blob).collect()
    }

    /// Fails if the device cannot read the superblock.
    pub fn check_answers(&mut self) -> io::Result<()> {
        self.counts.read_requests += 1;
        self.device.read_at(0, &mut [0; SUPERBLOCK_BYTES])
    }

    /// Tells the device that the bytes at these places contradict the format, unless a program wrote them so.
    pub fn contradict(&mut self, places: &[Place], error: &Corruption) {
        // Sectors that were not read are zeros here.
        if self.unreachable.is_some() || !error.is_of_bytes() {
            return;
        }
        let what = error.to_string();
        for place in places {
            let told = self.device.control().contradicted(place.offset, place.len as u64, &what);
            if let Err(error) = told {
                self.changed.get_or_insert(error);
            }
        }
    }

    /// Fails if the device did not answer once since this `Disk` was made, or had changed bytes that can be
    /// restored. Conclusions from its reads are then invalid.
    pub fn check_reached(&self) -> io::Result<()> {
        match self.unreachable.as_ref().or(self.changed.as_ref()) {
            Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(()),
        }
    }

    /// Repeats a failed request sector by sector, unless the device does not answer.
    fn read_again(&mut self, span: Place, error: io::Error) -> Vec<u8> {
        let mut bytes = vec![0; span.len];
        match is_unreachable(&error) {
            true => {
                self.unreachable.get_or_insert(error);
            }
            false => self.read_sectors(span, &mut bytes),
        }
        bytes
    }

    fn read_sectors(&mut self, span: Place, bytes: &mut [u8]) {
        let sector = self.sector_bytes();
        let mut offset = span.offset;
        while offset < span.end() {
            let end = ((offset / sector + 1) * sector).min(span.end());
            let from = (offset - span.offset) as usize;
            let to = (end - span.offset) as usize;
            self.counts.read_requests += 1;
            if let Err(error) = self.device.read_at(offset, &mut bytes[from..to]) {
                bytes[from..to].fill(0);
                if is_unreachable(&error) {
                    self.unreachable.get_or_insert(error);
                    return;
                }
                self.unreadable.insert(offset);
            }
            offset = end;
        }
    }

    fn overlay_onto(&self, span: Place, bytes: &mut [u8]) {
        if self.overlay.is_empty() {
            return;
        }
        let first = span.offset.saturating_sub(PIECE_BYTES as u64 - 1);
        for (at, piece) in self.overlay.range(first..span.end()) {
            let from = span.offset.max(*at);
            let to = span.end().min(at + PIECE_BYTES as u64);
            bytes[(from - span.offset) as usize..(to - span.offset) as usize]
                .copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
        }
    }

    /// Changes what later reads see. Offset and length are multiples of 512.
    pub fn change(&mut self, offset: u64, bytes: &[u8]) {
        debug_assert!(offset.is_multiple_of(PIECE_BYTES as u64), "{offset} is not a sector's");
        debug_assert!(
            bytes.len().is_multiple_of(PIECE_BYTES),
            "{} bytes are not whole sectors",
            bytes.len()
        );
        debug_assert!(
            offset + bytes.len() as u64 <= self.size_bytes(),
            "{offset} is not on the device"
        );
        for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let at = offset + (index * PIECE_BYTES) as u64;
            self.unreadable.remove(&at);
            self.overlay.insert(at, piece.into());
        }
    }

    /// Puts the place before all others in the order of writing: nothing refers to it yet.
    pub fn write_first(&mut self, place: Place) {
        self.first.extend(pieces_of(place));
    }

    /// Puts the place after all others in the order of writing: something that it contained moves elsewhere.
    pub fn write_last(&mut self, place: Place) {
        self.last.extend(pieces_of(place));
    }

    /// Writes all changes to the device in three steps with a barrier after each, so that a repair
    /// that is cut short loses nothing.
    pub fn commit(&mut self) -> io::Result<()> {
        self.check_reached()?;
        let (mut first, mut middle, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for (at, piece) in std::mem::take(&mut self.overlay) {
            let step = match (self.first.contains(&at), self.last.contains(&at)) {
                (true, _) => &mut first,
                (false, true) => &mut last,
                (false, false) => &mut middle,
            };
            step.push((at, piece));
        }
        debug_assert!(
            first.iter().chain(&middle).chain(&last).all(|(_, p)| p.len() == PIECE_BYTES)
        );
        self.first.clear();
        self.last.clear();
        for step in [first, middle, last] {
            self.write_pieces(step)?;
        }
        Ok(())
    }

    /// Writes pieces in the order of their addresses, neighbours in one request.
    fn write_pieces(&mut self, pieces: Vec<(u64, Box<[u8]>)>) -> io::Result<()> {
        let mut run: Vec<u8> = Vec::new();
        let mut start = 0;
        for (at, piece) in pieces {
            let adjacent = at == start + run.len() as u64;
            if !run.is_empty() && (!adjacent || run.len() as u64 >= REQUEST_BYTES_MAX) {
                self.write(start, &run)?;
                run.clear();
            }
            if run.is_empty() {
                start = at;
            }
            run.extend_from_slice(&piece);
        }
        if !run.is_empty() {
            self.write(start, &run)?;
            self.device.barrier()?;
        }
        Ok(())
    }

    /// Writes to the device at once.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_reached()?;
        self.counts.write_requests += 1;
        self.counts.write_bytes += bytes.len() as u64;
        self.device.write_at(offset, &[IoSlice::new(bytes)])?;
        // A sector that was rewritten can be read again.
        let end = offset + bytes.len() as u64;
        self.unreadable.retain(|at| !(offset..end).contains(at));
        Ok(())
    }

    pub fn barrier(&self) -> io::Result<()> {
        self.device.barrier()
    }

    pub fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

/// The pieces of the overlay that a place has.
fn pieces_of(place: Place) -> impl Iterator<Item = u64> {
    (place.offset..place.end()).step_by(PIECE_BYTES)
}

fn is_unreachable(error: &io::Error) -> bool {
    Failure::of(error) != Failure::Medium
}

fn read_span(device: &dyn BlockDevice, span: Place) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; span.len];
    device.read_at(span.offset, &mut bytes)?;
    Ok(bytes)
}
