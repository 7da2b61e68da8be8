//! A device paired with another one that has the stable log of its volume.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::{BlockDevice, Geometry};

/// A device, and the one that has the log of the volume on it.
pub struct PairedDevice<D> {
    home: D,
    log: Arc<dyn BlockDevice>,
}

impl<D: BlockDevice> PairedDevice<D> {
    /// Pairs `home` with `log`.
    pub fn new(home: D, log: Arc<dyn BlockDevice>) -> PairedDevice<D> {
        PairedDevice { home, log }
    }
}

impl<D: BlockDevice> BlockDevice for PairedDevice<D> {
    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.home)
    }

    fn geometry(&self) -> Geometry {
        self.home.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.home.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.home.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.home.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        self.home.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.home.discard(offset, len)
    }

    fn log_device(&self) -> Option<Arc<dyn BlockDevice>> {
        Some(Arc::clone(&self.log))
    }
}
