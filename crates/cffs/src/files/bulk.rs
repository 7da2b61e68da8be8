//! Many files at once, in the order in which they lie on the device.
//!
//! A program that wants the contents of many files in an order of its own, as when it trains on a shuffled
//! data set, has the device go to and fro. Where all paths of a batch are known, the files can be read in the
//! order of the device instead, and given out as they come.

use std::num::NonZeroUsize;
use std::thread;

use parking_lot::Mutex;

use super::{File, Files};
use crate::error::Result;

/// How far a batch is.
#[derive(Default)]
struct Turns {
    /// The file that is taken next.
    next: usize,
    /// The first one that was not brought into memory yet.
    fetched: usize,
}

impl Files {
    /// Reads whole files in the order in which they lie on the device. `visit` gets each file's contents,
    /// which are there until it returns, or why it could not be read, with its position in `paths`; it is
    /// called by `threads` threads, in no order that a caller could rely on. A path that is there twice is
    /// read twice.
    ///
    /// The directories are looked at first, so nothing is given out before all paths are known.
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.write("/a", b"12")?;
    /// files.write("/b", b"345")?;
    /// let bytes = std::sync::atomic::AtomicUsize::new(0);
    /// let one = std::num::NonZeroUsize::MIN;
    /// files.read_many(&["/b", "/a", "/c"], one, |position, contents| match contents {
    ///     Ok(contents) => drop(bytes.fetch_add(contents.len(), std::sync::atomic::Ordering::Relaxed)),
    ///     Err(error) => assert!(position == 2 && matches!(error, Error::NotFound)),
    /// });
    /// assert_eq!(bytes.into_inner(), 5);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn read_many<P: AsRef<[u8]> + Sync>(
        &self,
        paths: &[P],
        threads: NonZeroUsize,
        visit: impl Fn(usize, Result<&[u8]>) + Sync,
    ) {
        let found = self.in_device_order(paths, &visit);
        // The threads take the files by turns, so that together they go over the device once. What the next
        // ones lack is read in one sweep, for which all of them wait.
        let turns = Mutex::new(Turns::default());
        let take = || {
            let mut turns = turns.lock();
            let index = turns.next;
            let (_, position, file) = found.get(index)?;
            turns.next += 1;
            if index == turns.fetched {
                let next = found[index..].iter().map(|(_, _, file)| file.node().ino());
                turns.fetched += self.volume.fetch_batch(next);
            }
            Some((*position, file))
        };
        let read = || {
            // One buffer for all files: it stays in the processor's cache, and takes no memory per file.
            let mut buffer = Vec::new();
            while let Some((position, file)) = take() {
                let read = file.contents_into(&mut buffer);
                visit(position, read.map(|len| &buffer[..len]));
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads.get().min(found.len()) {
                scope.spawn(read);
            }
            read();
        });
    }

    /// The files, with their places on the device and their positions in `paths`. What cannot be opened is
    /// visited.
    fn in_device_order<P: AsRef<[u8]>>(
        &self,
        paths: &[P],
        visit: &impl Fn(usize, Result<&[u8]>),
    ) -> Vec<(u64, usize, File)> {
        // In the order of their names, so that each directory is looked at once.
        let mut positions: Vec<usize> = (0..paths.len()).collect();
        positions.sort_unstable_by_key(|position| paths[*position].as_ref());
        let mut found = Vec::with_capacity(paths.len());
        for position in positions {
            let opened = self.open(&paths[position]);
            let placed = opened.and_then(|file| {
                Ok((self.volume.device_offset(file.node().ino())?, position, file))
            });
            match placed {
                Ok(placed) => found.push(placed),
                Err(error) => visit(position, Err(error)),
            }
        }
        found.sort_unstable_by_key(|(offset, position, _)| (*offset, *position));
        found
    }
}
