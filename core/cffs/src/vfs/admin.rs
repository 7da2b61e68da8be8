//! Administration: jobs that the structs of [`admin`](crate::admin) carry out.

use std::ops::{ControlFlow, Range};

use super::{Placement, ScrubProgress, Trimmed};
use crate::admin::{Explain, Grow, Scrub, Trim};
use crate::alloc::Clusters;
use crate::epoch::EpochWriter;
use crate::error::{Error, Result};
use crate::inode::Fill;
use crate::trace::OpKind;
use crate::units::{InodeNo, Key};

/// The administration of an open volume ([`Volume::admin`](super::Volume::admin)).
#[derive(Clone, Copy)]
pub struct Admin<'a> {
    pub(super) writer: &'a EpochWriter,
}

impl Admin<'_> {
    /// Whether the volume was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.writer.options.read_only
    }

    /// Why the volume refuses changes, if a failed write is the reason, or damage by the volume's policy.
    pub fn refusal(&self) -> Option<String> {
        self.writer.health.latched().or_else(|| match self.writer.health.check_changeable() {
            Err(error @ Error::Damaged(_)) => Some(error.to_string()),
            _ => None,
        })
    }

    /// Discards the free space of a range of the volume, in bytes, except runs shorter than `least_bytes`.
    /// Space that was freed before the call counts as free, and its release is made durable.
    ///
    /// The time grows with the number of cylinder groups that were ever used; unused space is discarded in a
    /// few requests. Changes continue meanwhile.
    ///
    /// # Errors
    ///
    /// [`ReadOnly`](crate::error::Error::ReadOnly) and [`Latched`](crate::error::Error::Latched) as for
    /// changes; [`Io`](crate::error::Error::Io) if the device failed a discard; the rest is then not
    /// discarded.
    pub fn trim(&self, range: Range<u64>, least_bytes: u64) -> Result<Trimmed> {
        Trim::new(self.writer).run(range, least_bytes)
    }

    /// Makes the volume `size_bytes` long, or as long as its device is; an image file is extended first.
    /// Returns the size that it has then: less if the last cylinder group would be too short for its own
    /// structures, and the old size if nothing can be gained.
    ///
    /// The volume can be used meanwhile. After a crash it has its old size or its new one.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the volume would shrink, the device is too short, or the size is more than a volume
    /// can have; the volume is as it was then. [`Io`] if the device could not be extended; if it failed a
    /// write, the volume is also [latched](super::Health::latched).
    ///
    /// [`Unsupported`]: crate::error::Error::Unsupported
    /// [`Io`]: crate::error::Error::Io
    pub fn grow(&self, size_bytes: Option<u64>) -> Result<u64> {
        Grow::new(self.writer).run(size_bytes)
    }

    /// Verifies the checksums of all metadata and of the contents of small files against the device, while
    /// the volume is in use. Changes nothing.
    ///
    /// After each inode `watch` gets the progress; it can wait to slow the scrub down, or end it.
    ///
    /// # Errors
    ///
    /// `ESTALE` once the volume is closed; [`Error::Unsupported`] for a volume that was opened read-only and
    /// not left clean; those of [reading](super#errors) if the tables that point to the inodes cannot be
    /// read, or the device does not answer. Damage of a file is not an
    /// error; the result lists it as a problem.
    pub fn scrub(
        &self,
        watch: &mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Result<ScrubProgress> {
        Scrub::new(self.writer).run(watch)
    }

    /// The places of a file, its neighbours, and the cost of reading it cold.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn explain(&self, ino: InodeNo) -> Result<Placement> {
        let _op = self.writer.enter(OpKind::Stat, ino);
        Explain::new(self.writer).placement(&*self.writer.vnode(ino)?)
    }

    /// The byte ranges of the device with the contents of a file, or the names of a directory, in the order
    /// of the file; none for contents in the inode or only in memory.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn places(&self, ino: InodeNo) -> Result<Vec<Range<u64>>> {
        let _op = self.writer.enter(OpKind::Stat, ino);
        let fragment_bytes = u64::from(self.writer.inodes.layout.fragment_bytes);
        let vnode = self.writer.vnode(ino)?;
        let state = vnode.state.read();
        let written = state.inode.map().into_iter().flat_map(|map| map.iter());
        let written = written.filter(|extent| !extent.unwritten).map(|extent| extent.run());
        let places = written.map(|run| run.start.0 * fragment_bytes..run.end().0 * fragment_bytes);
        Ok(places.collect())
    }

    /// The key by which a file is placed: files with the same key are stored together.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn placement_key(&self, ino: InodeNo) -> Result<Key> {
        Ok(self.writer.vnode(ino)?.state.read().inode.placement_key())
    }

    /// The byte of the device at which the contents of a file begin. If they are in the inode or have no
    /// place yet, where the inode is, and 0 if that has no place either. So files in the order of this
    /// number are in the order of the device.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn device_offset(&self, ino: InodeNo) -> Result<u64> {
        Explain::new(self.writer).device_offset(&*self.writer.vnode(ino)?)
    }

    /// The number of clusters on the volume; `None` if the volume cannot have any, or until they are counted.
    /// Each call reads the headers of at most 128 groups.
    ///
    /// # Errors
    ///
    /// Those of [reading](super#errors).
    pub fn clusters(&self) -> Result<Option<u64>> {
        let inodes = &self.writer.inodes;
        if !inodes.layout.has_clusters() {
            return Ok(None);
        }
        self.writer.health.noted(Clusters::of(&inodes.alloc).on_volume())
    }

    /// How far the intent log is filled.
    pub fn intent_log(&self) -> Fill {
        self.writer.inodes.intent_log.fill()
    }

    /// The current step of writing changes to the device, in words; `None` if nothing is written.
    pub fn step(&self) -> Option<&'static str> {
        self.writer.inodes.cache.stage.get().map(|stage| stage.describe())
    }
}
