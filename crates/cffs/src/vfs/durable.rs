//! Making changes durable, and closing the volume: calls that
//! [`EpochWriter`](crate::epoch::EpochWriter) carries out.

use std::sync::Arc;
use std::time::Duration;

use super::Volume;
use crate::device::{BlockDevice, Failure};
use crate::error::Result;
use crate::format::Superblock;
use crate::inode::Fill;
use crate::trace::OpKind;
use crate::units::InodeNo;

impl Volume {
    /// Makes all changes before the call durable.
    ///
    /// # Errors
    ///
    /// `EROFS` if an earlier write failed; `ESTALE` once the volume is closed; those of the
    /// [device](super#errors), which latch the volume: the changes are not durable, and reads see them until
    /// the volume is closed.
    pub fn sync(&self) -> Result<()> {
        let _op = self.enter_volume(OpKind::Sync);
        self.calls.syncs.count();
        self.writer.check_open()?;
        if self.options.read_only { Ok(()) } else { self.writer.commit() }
    }

    /// Makes one file durable, with its names and those of the directories above them. `data_only` leaves out
    /// all that is not needed to read the contents back: if only times were changed, nothing is written. Nor
    /// is it if the device has all this already.
    ///
    /// # Errors
    ///
    /// As of [`sync`](Volume::sync); `ESTALE` also if the inode does not exist.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use cffs::error::{Error, Result};
    /// # use cffs::units::InodeNo;
    /// # use cffs::vfs::{Caller, NewFile, NewKind, RenameMode};
    /// # let device = Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let volume = cffs::open(device, Arc::new(cffs::clock::SystemClock), Default::default())?;
    /// # let new = NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
    /// # let me = &Caller::ROOT;
    /// let file = volume.make(me, InodeNo::ROOT, b"f", &new)?.ino;
    /// volume.write(me, file, 0, b"kept")?;
    /// volume.sync_file(file, false)?;
    /// volume.close()?;
    /// assert!(matches!(volume.sync(), Err(Error::Stale)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn sync_file(&self, ino: InodeNo, data_only: bool) -> Result<()> {
        self.sync_files(&[ino], data_only)
    }

    /// Makes several files durable together, as [`sync_file`](Volume::sync_file) does each: one epoch serves
    /// all of them.
    ///
    /// # Errors
    ///
    /// As of [`sync_file`](Volume::sync_file).
    pub fn sync_files(&self, files: &[InodeNo], data_only: bool) -> Result<()> {
        let _op = self.enter(OpKind::Sync, files.first().copied().unwrap_or(InodeNo::ROOT));
        self.calls.syncs.count();
        let vnodes = files.iter().map(|ino| self.vnode(*ino)).collect::<Result<Vec<_>>>()?;
        if self.options.read_only {
            return Ok(());
        }
        self.writer.sync_files(&vnodes, data_only)
    }

    /// Closes the volume: makes everything durable, writes all derived state, marks the volume as clean and
    /// releases the device. Later calls fail.
    ///
    /// # Errors
    ///
    /// `EROFS` if an earlier write failed or another program has taken the volume over; those of
    /// the [device](super#errors). Then changes since the last sync may be lost, and the
    /// next opening recovers the volume. A second call succeeds.
    pub fn close(&self) -> Result<()> {
        let _op = self.enter_volume(OpKind::Maintenance);
        if !self.writer.begin_close()? {
            return Ok(());
        }
        // A file that cannot be deleted keeps the volume from being clean, but all else is written.
        let deleted: Vec<_> = self.references.end().iter().map(|ino| self.delete(*ino)).collect();
        self.writer.finish_close(deleted.into_iter().collect())
    }

    /// Writes a consistent state of the volume with all derived state, and calls `look` while the device
    /// keeps it. Reads and changes go on meanwhile, in memory; a caller that needs an epoch waits. The second
    /// argument of `look` tells whether files without a name are in use: their space is taken, although no
    /// inode on the device has it.
    ///
    /// # Errors
    ///
    /// As of [`sync`](Volume::sync). Then `look` was not called.
    pub fn freeze<T>(&self, look: impl FnOnce(&Arc<dyn BlockDevice>, bool) -> T) -> Result<T> {
        self.writer.freeze(look)
    }

    /// Writes an epoch if one is due, and a clean point if nothing has been changed for a while. A
    /// thread of the front end calls this about once a second ([`Volume::with_background`]).
    ///
    /// # Errors
    ///
    /// Those of the [device](super#errors), which latch the volume. On a volume that refuses changes it does
    /// nothing and succeeds.
    pub fn background(&self) -> Result<()> {
        self.writer.background()
    }

    /// Does `work` while another thread calls [`Volume::background`] every `interval`, or as often
    /// as epochs are due if that is more often, and whenever changes take much memory. `observe` learns how
    /// each call went.
    pub fn with_background<T>(
        &self,
        interval: Duration,
        observe: impl FnMut(Result<()>) + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        self.writer.with_background(interval, observe, work)
    }

    /// Why the volume refuses changes, if a failed write is the reason.
    pub fn latched(&self) -> Option<String> {
        self.writer.latched()
    }

    /// The kind of failure of the device, if a failed write is why the volume refuses changes.
    pub fn latched_by(&self) -> Option<Failure> {
        self.writer.latched_by()
    }

    /// The age of the oldest change that may be lost, if changes are lost because a write failed: earlier
    /// changes are on the device, and so is all that an fsync made durable since. Until the volume is closed,
    /// lost changes can still be read.
    pub fn lost(&self) -> Option<Duration> {
        self.writer.lost()
    }

    /// Latches the volume, so that it refuses changes and writes nothing more: for a front end in which a
    /// call panicked, since the state in memory may be half changed.
    pub fn distrust(&self, why: &str) {
        self.writer.distrust(why)
    }

    /// Remembers that damage was found: the number of its kind in `docs/FSCK.md`, the inode that has it (0
    /// for none), and a description. A volume that is open read-only remembers it as long as it is open.
    pub fn remember_damage(&self, code: u16, ino: InodeNo, what: &str) {
        self.writer.remember_damage(code, ino, what)
    }

    /// How far the intent log is filled.
    pub fn intent_log(&self) -> Fill {
        self.inodes().intent_log.fill()
    }

    /// The superblock as of now.
    pub fn superblock(&self) -> Superblock {
        self.writer.superblock()
    }

    /// The current step of writing changes to the device, in words; `None` if nothing is written.
    pub fn step(&self) -> Option<&'static str> {
        self.inodes().cache.stage.get().map(|stage| stage.describe())
    }
}
