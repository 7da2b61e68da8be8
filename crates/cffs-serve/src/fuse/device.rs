//! The device below a mounted volume.

use std::io::{self, IoSlice};

use cffs::device::{BlockDevice, Geometry};

/// A device of which the transport learns who waits for it: meanwhile another thread takes the place
/// of the one that does. A mounted volume should stand on one.
pub struct ServingDevice<D>(pub D);

impl<D: BlockDevice> BlockDevice for ServingDevice<D> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        fuse_ring::will_wait();
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        fuse_ring::will_wait();
        self.0.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        fuse_ring::will_wait();
        self.0.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        fuse_ring::will_wait();
        self.0.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        fuse_ring::will_wait();
        self.0.discard(offset, len)
    }

    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        self.0.grow(size_bytes)
    }

    fn expect_chosen_reads(&self) {
        self.0.expect_chosen_reads();
    }

    fn expect_wait(&self) {
        fuse_ring::will_wait();
    }

    fn longest_request(&self) -> Option<u64> {
        self.0.longest_request()
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        self.0.drop_cached(offset, len);
    }

    fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }
}
