//! A device paired with another one that has the journal of its volume.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::{BlockDevice, Geometry};

/// A device with a volume, and the device with its journal.
pub struct PairedDevice<D> {
    home: D,
    journal: Arc<dyn BlockDevice>,
}

impl<D: BlockDevice> PairedDevice<D> {
    /// Pairs `home` with `journal`.
    pub fn new(home: D, journal: Arc<dyn BlockDevice>) -> PairedDevice<D> {
        PairedDevice { home, journal }
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

    fn journal_device(&self) -> Option<Arc<dyn BlockDevice>> {
        Some(Arc::clone(&self.journal))
    }
}
