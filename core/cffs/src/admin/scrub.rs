//! Scrubbing a volume while it is in use: everything that has a checksum is read from the device and
//! verified, at the pace that the caller sets.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::device::Failure;
use crate::epoch::EpochWriter;
use crate::error::{Error, Result};
use crate::format::superblock::State;
use crate::inode::{InodeCache, Scrubber};
use crate::trace::OpKind;
use crate::units::{CgIndex, InodeNo};

/// The most problems whose text a scrub keeps; the others are only counted.
const PROBLEMS_KEPT_MAX: usize = 256;

/// How far a scrub has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubProgress {
    /// Inodes that were examined.
    pub inodes: u64,
    /// Inodes that there were when it began.
    pub inodes_total: u64,
    /// Bytes that were read from the device.
    pub read_bytes: u64,
    /// Problems that were found.
    pub problem_count: u64,
    /// The first of them, in words.
    pub problems: Vec<String>,
}

/// Scrubs a volume that is in use.
pub(crate) struct Scrub<'a> {
    inodes: &'a InodeCache,
    writer: &'a EpochWriter,
}

impl<'a> Scrub<'a> {
    pub(crate) fn new(writer: &'a EpochWriter) -> Scrub<'a> {
        Scrub { inodes: &writer.inodes, writer }
    }
}

impl Scrub<'_> {
    /// Verifies everything that has a checksum; see [`Admin::scrub`](crate::vfs::Admin::scrub).
    pub(crate) fn run(
        &self,
        watch: &mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Result<ScrubProgress> {
        let _op = self.writer.enter_volume(OpKind::Maintenance);
        self.writer.health.check_open()?;
        if self.writer.options.read_only && self.writer.superblock.get().state != State::Clean {
            let what = "the volume was not left clean, so its tables are not those of its files; \
                        run cffs fsck -p on it first";
            return Err(Error::Unsupported(what.into()));
        }
        let inodes = self.inodes;
        let inodes_total = inodes.locator.inodes();
        let mut progress = ScrubProgress { inodes_total, ..ScrubProgress::default() };
        let mut scrubber = Scrubber::new(inodes);
        {
            // These change only under the lock of epochs.
            let _epochs = self.writer.epochs.lock();
            scrubber.superblock();
        }
        for cg in (0..inodes.alloc.groups_made()).map(CgIndex) {
            {
                let _epochs = self.writer.epochs.lock();
                scrubber.group(cg);
            }
            progress.take(self.writer, &mut scrubber)?;
        }
        for ino in [InodeNo::SYSTEM, InodeNo::ROOT, InodeNo::LOCATOR, InodeNo::EXTERNAL] {
            self.scrub_inode(ino, &mut scrubber)?;
        }
        let blocks = {
            let table = inodes.system(InodeNo::LOCATOR)?;
            let size = table.state.read().inode.size;
            size / u64::from(inodes.layout.block_bytes)
        };
        for block in 0..blocks {
            for ino in scrubber.numbers(block).into_iter().filter(|ino| !ino.is_system()) {
                self.scrub_inode(ino, &mut scrubber)?;
                progress.inodes += 1;
                progress.take(self.writer, &mut scrubber)?;
                if watch(&progress).is_break() {
                    return Ok(progress);
                }
            }
        }
        progress.take(self.writer, &mut scrubber)?;
        let _ = watch(&progress);
        Ok(progress)
    }

    /// Verifies one inode. A problem counts only if it is found again while no epoch and no change is under
    /// way.
    fn scrub_inode(&self, ino: InodeNo, scrubber: &mut Scrubber<'_>) -> Result<()> {
        self.writer.health.check_open()?;
        let known = scrubber.problems.len();
        self.look_at(ino, scrubber);
        if scrubber.problems.len() > known {
            scrubber.problems.truncate(known);
            let _epochs = self.writer.epochs.lock();
            let _gate = self.writer.gate.write();
            let mut again = Scrubber::new(self.inodes);
            self.look_at(ino, &mut again);
            scrubber.read_bytes += again.read_bytes;
            scrubber.problems.append(&mut again.problems);
        }
        Ok(())
    }

    fn look_at(&self, ino: InodeNo, scrubber: &mut Scrubber<'_>) {
        let inodes = self.inodes;
        match inodes.peek(ino).map_or_else(|| inodes.get(ino), Ok) {
            Ok(vnode) => scrubber.inode(&vnode.state.read()),
            // It was deleted meanwhile.
            Err(Error::Stale) => {}
            Err(error) => scrubber.problems.push(error),
        }
    }
}

impl ScrubProgress {
    /// Takes the problems that were found since the last call.
    ///
    /// # Errors
    ///
    /// The error of a device that did not answer: its blocks were not verified.
    fn take(&mut self, writer: &EpochWriter, scrubber: &mut Scrubber<'_>) -> Result<()> {
        self.read_bytes = scrubber.read_bytes;
        for problem in scrubber.problems.drain(..) {
            if let Error::Io(error) = &problem
                && !Failure::of(error).is_of_data()
            {
                return Err(problem);
            }
            let text = problem.to_string();
            // A bad sector is found again with every inode in it.
            if self.problems.contains(&text) {
                continue;
            }
            tracing::error!("scrub: {text}");
            if let Error::Corruption(corruption) = &problem {
                writer.health.note_damage(corruption);
            }
            self.problem_count += 1;
            if self.problems.len() < PROBLEMS_KEPT_MAX {
                self.problems.push(text);
            }
        }
        Ok(())
    }
}
