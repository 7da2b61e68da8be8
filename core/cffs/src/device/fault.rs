//! A device that fails, by script or by seed.
//!
//! A [`Fault`] has the requests that it considers ([`Target`]), those of them that it strikes ([`Strike`]),
//! and its [`Effect`]. The first fault that strikes a request decides its effect. Every fault counts all
//! requests that it considers, including those struck by another fault, so a script has the same effect in
//! every run with the same order of requests.

use std::io::{self, IoSlice};
use std::ops::Range;

use parking_lot::Mutex;

use super::seed::Seeded;
use super::{BlockDevice, Geometry, Request, RequestKind, gather};

#[cfg(test)]
mod tests;

/// The requests that a fault considers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Only requests of these kinds.
    pub kinds: Vec<RequestKind>,
    /// Only reads, writes and discards that touch these bytes; `None` for all.
    pub bytes: Option<Range<u64>>,
}

impl Target {
    /// Every read.
    pub fn reads() -> Target {
        Target { kinds: vec![RequestKind::Read], bytes: None }
    }

    /// Every write.
    pub fn writes() -> Target {
        Target { kinds: vec![RequestKind::Write], bytes: None }
    }

    /// Every barrier and sync.
    pub fn flushes() -> Target {
        Target { kinds: vec![RequestKind::Barrier, RequestKind::Sync], bytes: None }
    }

    /// Every discard.
    pub fn discards() -> Target {
        Target { kinds: vec![RequestKind::Discard], bytes: None }
    }

    /// The same kinds, where they touch `bytes`.
    pub fn within(self, bytes: Range<u64>) -> Target {
        Target { bytes: Some(bytes), ..self }
    }

    fn covers(&self, request: &Request) -> bool {
        let touches = |bytes: &Range<u64>| {
            bytes.start < request.end_bytes() && request.offset_bytes < bytes.end
        };
        self.kinds.contains(&request.kind) && self.bytes.as_ref().is_none_or(touches)
    }
}

/// The considered requests that a fault strikes. They count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// The one with this number.
    Nth(u64),
    /// This one and all that follow.
    From(u64),
    /// All.
    Always,
    /// About this many in a million, chosen by the fault's seed.
    PerMillion(u32),
}

/// The effect of a fault on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails with this `errno` and does nothing.
    Error(i32),
    /// A write writes this many of its sectors, then fails with `EIO`. Other requests fail.
    Torn {
        /// The sectors that are written.
        sectors: u32,
    },
    /// It succeeds and does nothing; a read then leaves the caller's buffer as it was.
    Lost,
    /// It succeeds, but one bit of its data, chosen by the seed, is wrong. A request without data
    /// is not changed.
    FlippedBit,
}

impl Effect {
    /// The medium is bad: `EIO`.
    pub const IO_ERROR: Effect = Effect::Error(EIO);
    /// The host of a sparse image is full: `ENOSPC`.
    pub const NO_SPACE: Effect = Effect::Error(rustix::io::Errno::NOSPC.raw_os_error());
}

const EIO: i32 = rustix::io::Errno::IO.raw_os_error();

/// One way to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The requests that it considers.
    pub target: Target,
    /// Which of them it strikes.
    pub strike: Strike,
    /// The effect on these requests.
    pub effect: Effect,
}

struct Armed {
    fault: Fault,
    seen: u64,
    seeded: Seeded,
}

/// Lets faults strike the requests to `D`.
pub struct FaultDevice<D> {
    inner: D,
    seed: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    armed: Vec<Armed>,
    struck: u64,
}

impl<D: BlockDevice> FaultDevice<D> {
    /// A device without faults. `seed` decides the random effects of faults that are added.
    pub fn new(inner: D, seed: u64) -> FaultDevice<D> {
        FaultDevice { inner, seed, state: Mutex::default() }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Adds a fault, which counts requests from now on.
    pub fn arm(&self, fault: Fault) {
        let mut state = self.state.lock();
        let seeded = Seeded::new(self.seed.wrapping_add(state.armed.len() as u64));
        state.armed.push(Armed { fault, seen: 0, seeded });
    }

    /// Takes all faults away: the device is sound again.
    pub fn disarm(&self) {
        self.state.lock().armed.clear();
    }

    /// The number of struck requests so far. A test that arms a fault should check that it struck.
    pub fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    /// The effect on `request`, and a random word with which it is carried out.
    fn judge(&self, request: &Request) -> io::Result<Option<(Effect, u64)>> {
        self.geometry().check(request.offset_bytes, request.len_bytes)?;
        let mut state = self.state.lock();
        let mut verdict = None;
        for armed in &mut state.armed {
            if !armed.fault.target.covers(request) {
                continue;
            }
            let number = armed.seen;
            armed.seen += 1;
            let strikes = match armed.fault.strike {
                Strike::Nth(nth) => number == nth,
                Strike::From(first) => number >= first,
                Strike::Always => true,
                Strike::PerMillion(share) => armed.seeded.below(1_000_000) < u64::from(share),
            };
            if strikes && verdict.is_none() {
                verdict = Some((armed.fault.effect, armed.seeded.next()));
            }
        }
        state.struck += u64::from(verdict.is_some());
        Ok(verdict)
    }

    fn pass(&self, request: Request, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self.judge(&request)? {
            None | Some((Effect::FlippedBit, _)) => call(),
            Some((Effect::Lost, _)) => Ok(()),
            Some((Effect::Error(errno), _)) => Err(io::Error::from_raw_os_error(errno)),
            Some((Effect::Torn { .. }, _)) => Err(io::Error::from_raw_os_error(EIO)),
        }
    }

    fn tear(&self, offset: u64, bufs: &[IoSlice<'_>], sectors: u32) -> io::Result<()> {
        let sector_bytes = u64::from(self.geometry().sector_bytes);
        let first_sector_end = (offset / sector_bytes + 1) * sector_bytes;
        let kept = match sectors {
            0 => 0,
            more => first_sector_end - offset + u64::from(more - 1) * sector_bytes,
        };
        let data = gather(bufs);
        let kept = usize::try_from(kept).unwrap_or(usize::MAX).min(data.len());
        self.inner.write_at(offset, &[IoSlice::new(&data[..kept])])?;
        Err(io::Error::from_raw_os_error(EIO))
    }
}

fn flip_bit(data: &mut [u8], chance: u64) {
    if !data.is_empty() {
        let bit = chance % (data.len() as u64 * 8);
        data[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

impl<D: BlockDevice> BlockDevice for FaultDevice<D> {
    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.inner)
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.judge(&Request::read(offset, buf))? {
            None => self.inner.read_at(offset, buf),
            Some((Effect::Lost, _)) => Ok(()),
            Some((Effect::FlippedBit, chance)) => {
                self.inner.read_at(offset, buf)?;
                flip_bit(buf, chance);
                Ok(())
            }
            Some((Effect::Error(errno), _)) => Err(io::Error::from_raw_os_error(errno)),
            Some((Effect::Torn { .. }, _)) => Err(io::Error::from_raw_os_error(EIO)),
        }
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        match self.judge(&Request::write(offset, bufs))? {
            None => self.inner.write_at(offset, bufs),
            Some((Effect::Lost, _)) => Ok(()),
            Some((Effect::FlippedBit, chance)) => {
                let mut data = gather(bufs);
                flip_bit(&mut data, chance);
                self.inner.write_at(offset, &[IoSlice::new(&data)])
            }
            Some((Effect::Error(errno), _)) => Err(io::Error::from_raw_os_error(errno)),
            Some((Effect::Torn { sectors }, _)) => self.tear(offset, bufs, sectors),
        }
    }

    fn barrier(&self) -> io::Result<()> {
        self.pass(Request::BARRIER, || self.inner.barrier())
    }

    fn sync(&self) -> io::Result<()> {
        self.pass(Request::SYNC, || self.inner.sync())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.pass(Request::discard(offset, len), || self.inner.discard(offset, len))
    }
}
