//! The device of a mounted volume, observed by the watchdog.

use std::io::{self, IoSlice};
use std::sync::Arc;

use cffs::device::{BlockDevice, Control, Geometry};

use super::watch::{DeviceCall, Watch};

/// A device that records its running calls for the watchdog.
pub struct WatchedDevice<D>(pub D, pub Arc<Watch>);

impl<D: BlockDevice> BlockDevice for WatchedDevice<D> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let _job = self.1.device(DeviceCall::Read, offset, buf.len() as u64);
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        let _job = self.1.device(DeviceCall::Write, offset, len);
        self.0.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        let _job = self.1.device(DeviceCall::Flush, 0, 0);
        self.0.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        let _job = self.1.device(DeviceCall::Flush, 0, 0);
        self.0.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let _job = self.1.device(DeviceCall::Discard, offset, len);
        self.0.discard(offset, len)
    }

    fn below(&self) -> Option<&dyn BlockDevice> {
        Some(&self.0)
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl<D: BlockDevice> Control for WatchedDevice<D> {
    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        self.0.control().grow(size_bytes)
    }

    fn expect_chosen_reads(&self) {
        self.0.control().expect_chosen_reads();
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        self.0.control().drop_cached(offset, len);
    }

    fn contradicted(&self, offset: u64, len: u64, what: &str) -> io::Result<()> {
        self.0.control().contradicted(offset, len, what)
    }

    fn give_back(&self) -> io::Result<()> {
        let _job = self.1.device(DeviceCall::Flush, 0, 0);
        self.0.control().give_back()
    }

    fn check_handover(&self) -> Result<(), String> {
        self.0.control().check_handover()
    }

    fn hand_over(&self) -> io::Result<()> {
        let _job = self.1.device(DeviceCall::Flush, 0, 0);
        self.0.control().hand_over()
    }
}
