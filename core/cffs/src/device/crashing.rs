//! A device that keeps possible images of a crash at each barrier and sync.
//!
//! Just before a phase ends, each of its writes may be lost or not: most states are possible at that moment,
//! which passes before the call returns. A test lets a file system run, takes the images, and recovers each
//! of them.

use std::io::{self, IoSlice};
use std::time::Duration;

use parking_lot::Mutex;

use super::memory::Image;
use super::seed::Seeded;
use super::volatile::VolatileDevice;
use super::{BlockDevice, Geometry};

#[cfg(test)]
mod tests;

struct State {
    chance: Seeded,
    images: Vec<Image>,
    elapsed: Duration,
}

/// A device in memory whose writes are lost unless they are synced, and that keeps images of its
/// crashes.
pub struct CrashingDevice {
    inner: VolatileDevice,
    images_per_barrier: usize,
    state: Mutex<State>,
}

impl CrashingDevice {
    /// A device on which `image` is durable. At each barrier and sync it keeps up to
    /// `images_per_barrier` images, chosen by `seed`.
    pub fn new(image: Image, images_per_barrier: usize, seed: u64) -> CrashingDevice {
        let state =
            State { chance: Seeded::new(seed), images: Vec::new(), elapsed: Duration::ZERO };
        let inner = VolatileDevice::new(image);
        CrashingDevice { inner, images_per_barrier, state: Mutex::new(state) }
    }

    /// The device below, which has the states that a crash may leave now.
    pub fn inner(&self) -> &VolatileDevice {
        &self.inner
    }

    /// The images that were kept since the last call.
    pub fn take_images(&self) -> Vec<Image> {
        std::mem::take(&mut self.state.lock().images)
    }

    fn keep_images(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        for _ in 0..self.images_per_barrier {
            let image = self.inner.crash_seeded(state.chance.next())?;
            state.images.push(image);
        }
        Ok(())
    }
}

impl BlockDevice for CrashingDevice {
    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.inner)
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    /// Time passes at random, by the seed, so that code that depends on measured times takes all of its
    /// paths.
    fn elapsed(&self) -> Duration {
        let state = &mut *self.state.lock();
        state.elapsed += Duration::from_micros(state.chance.next() % 16_384);
        state.elapsed
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.inner.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.keep_images()?;
        self.inner.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        self.keep_images()?;
        self.inner.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}
