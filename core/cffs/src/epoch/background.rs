//! The background: a thread that writes what is due, while others make changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::EpochWriter;
use super::discard::{Discarder, Trimmed};
use super::early::EarlyWriter;
use super::progress::EpochKind;
use super::throttle::Throttle;
use crate::error::Result;
use crate::lock;
use crate::trace::OpKind;

/// Does the jobs of the background thread of a volume ([`EpochWriter::background`]).
#[derive(Clone, Copy)]
pub struct Background<'a>(pub(super) &'a EpochWriter);

/// Ends a background when its work ends, also by a panic.
struct End<'a> {
    throttle: &'a Throttle,
    ended: &'a AtomicBool,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.throttle.backgrounds.fetch_sub(1, Ordering::AcqRel);
        self.ended.store(true, Ordering::Release);
        self.throttle.call();
        self.throttle.let_go();
    }
}

impl Background<'_> {
    /// Does `work` while another thread calls [`run_once`](Background::run_once) every `interval`, or as
    /// often as epochs are due if that is more often, and whenever changes take much memory. `observe` learns
    /// how each call went.
    pub fn run_during<T>(
        self,
        interval: Duration,
        mut observe: impl FnMut(Result<()>) + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        let throttle = &self.0.throttle;
        let interval = interval.min(self.0.options.epoch_interval);
        let ended = AtomicBool::new(false);
        throttle.backgrounds.fetch_add(1, Ordering::AcqRel);
        lock::scope(|scope| {
            let _end = End { throttle, ended: &ended };
            scope.spawn(|| {
                loop {
                    throttle.wait(interval);
                    if ended.load(Ordering::Acquire) {
                        return;
                    }
                    observe(self.run_once());
                }
            });
            work()
        })
    }

    /// Writes an epoch if one is due, and a checkpoint if nothing has been changed for a while. A thread of
    /// the front end calls this about once a second ([`run_during`](Background::run_during)).
    ///
    /// # Errors
    ///
    /// Those of the [device](crate::vfs#errors), which latch the volume. On a volume that refuses changes it
    /// does nothing and succeeds.
    pub fn run_once(self) -> Result<()> {
        let writer = self.0;
        let _op = writer.enter_volume(OpKind::Background);
        if writer.health.check_writable().is_err() {
            return Ok(());
        }
        let inodes = &*writer.inodes;
        let throttle = &writer.throttle;
        let mut progress = match writer.epochs.try_lock() {
            Some(progress) => progress,
            // Others may be waiting for an epoch that begins after the one that is being written.
            None if throttle.is_filling() => writer.epochs.lock(),
            None => return Ok(()),
        };
        writer.superblock.save_damage().inspect_err(|error| writer.latch(error))?;
        let now = inodes.clock.monotonic();
        if inodes.queue_len() == 0 {
            progress.waited_from = now;
            throttle.forget_reads();
        }
        let is_due = now - progress.waited_from >= writer.options.epoch_interval;
        if !is_due && throttle.is_early_due() {
            let written = EarlyWriter::new(writer).run(&mut progress)?;
            // Newer contents can be written ahead as well, since an epoch waits for the device more than
            // once. Callers that wait for an epoch can take the lock in between.
            if written >= writer.options.early_bytes && throttle.is_early_due() {
                throttle.call();
                return Ok(());
            }
        }
        if (is_due || throttle.is_filling()) && inodes.queue_len() > 0 {
            writer.run_epoch(&mut progress, EpochKind::Plain)?;
        }
        let checkpoints = writer.checkpoints();
        if checkpoints.is_mark_due(&progress) {
            checkpoints.try_mark_clean(&mut progress)?;
        } else if checkpoints.is_due(&progress) {
            checkpoints.run_locked(&mut progress)?;
        }
        Discarder::new(inodes, 1).discard_some(&mut progress.freed);
        Ok(())
    }

    /// Writes contents ahead of their epoch, whether or not enough of them are new. This does not make them
    /// durable. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// `EROFS` if the volume refuses changes; `ESTALE` once it is closed; those of the
    /// [device](crate::vfs#errors), which latch the volume.
    pub fn write_early(self) -> Result<u64> {
        let _op = self.0.enter_volume(OpKind::Background);
        self.0.health.check_writable()?;
        EarlyWriter::new(self.0).run(&mut self.0.epochs.lock())
    }

    /// With [`OpenOptions::discard`](crate::options::OpenOptions::discard), discards all blocks that epochs
    /// have freed and that are still free.
    ///
    /// # Errors
    ///
    /// `EROFS` if the volume refuses changes; `ESTALE` once it is closed. A device that fails a
    /// discard is no error.
    pub fn discard_freed(self) -> Result<Trimmed> {
        let _op = self.0.enter_volume(OpKind::Maintenance);
        let mut discarder = Discarder::new(&self.0.inodes, 1);
        loop {
            let mut progress = self.0.epochs.lock();
            self.0.health.check_writable()?;
            if !discarder.discard_some(&mut progress.freed) {
                return Ok(discarder.trimmed);
            }
        }
    }
}
