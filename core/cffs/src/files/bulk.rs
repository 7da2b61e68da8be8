//! Many files at once: read in the order in which they are on the device, or cloned.
//!
//! A program that reads many files in an order of its own, for instance a shuffled data set for training,
//! makes the device seek back and forth. If all paths of a batch are known, the files can be read in the
//! order of the device instead, and passed on as they arrive.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::clone::{CloneError, CloneWatch, Cloned, clone_tree};
use super::{File, Files, Home, resolve};
use crate::error::{Error, Result};
use crate::vfs::{Caller, Volume};

impl Files {
    /// Reads whole files in the order in which they are on the device. `visit` gets the contents of each
    /// file, which are valid until it returns, or the error, with the file's position in `paths`. `threads`
    /// threads call it, in no particular order. A path that occurs twice is read twice.
    ///
    /// The directories are searched first, so no contents are passed on before all paths are resolved.
    /// Attached, only the calling thread calls `visit`, and one request has up to 1 MiB of contents.
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
        if let Home::Server(session) = &self.home {
            let too_large = session.root().0.read_many(paths, &visit);
            for position in too_large {
                let read = self.open(&paths[position]).and_then(|file| file.contents());
                match read {
                    Ok(contents) => visit(position, Ok(&contents)),
                    Err(error) => visit(position, Err(error)),
                }
            }
            return;
        }
        let (batch, missed) = self.batch(paths);
        for (position, error) in missed {
            visit(position, Err(error));
        }
        batch.read_whole(threads, visit);
    }

    /// The contents of a file that the server of a mounted volume reads in one request; `None` if it has more
    /// than 1 MiB, or if this program has the volume open.
    pub fn read_at_once(&self, path: impl AsRef<[u8]>) -> Option<Result<Vec<u8>>> {
        match &self.home {
            Home::Volume(_) => None,
            Home::Server(session) => session.root().0.read_small(path.as_ref()),
        }
    }

    /// Opens files that are to be read together. Also returns those that could not be opened, by their
    /// positions in `paths`. A path that occurs twice is opened twice. Attached, no file is opened, and each
    /// is returned with [`Error::Mounted`]: only a program that has the volume open knows their places.
    pub fn batch<P: AsRef<[u8]>>(&self, paths: &[P]) -> (Batch, Vec<(usize, Error)>) {
        if self.opened().is_err() {
            let mounted = |position| self.opened().err().map(|error| (position, error));
            let missed = (0..paths.len()).filter_map(mounted).collect();
            return (Batch { volume: None, members: Vec::new() }, missed);
        }
        // In the order of their names, so that each directory is searched once.
        let mut positions: Vec<usize> = (0..paths.len()).collect();
        positions.sort_unstable_by_key(|position| paths[*position].as_ref());
        let (mut opened, mut missed) = (Vec::with_capacity(paths.len()), Vec::new());
        for position in positions {
            match self.open(&paths[position]) {
                Ok(file) => opened.push((position, file)),
                Err(error) => missed.push((position, error)),
            }
        }
        let (batch, unplaced) = self.batch_of(opened);
        missed.extend(unplaced);
        (batch, missed)
    }

    /// The batch of files that are open already, each with a position. Also returns the positions of those
    /// that cannot be read.
    pub fn batch_of(&self, opened: Vec<(usize, File)>) -> (Batch, Vec<(usize, Error)>) {
        let (mut members, mut missed) = (Vec::with_capacity(opened.len()), Vec::new());
        for (position, file) in opened {
            let ino = file.node().ino();
            let offset = self.opened().and_then(|volume| volume.admin().device_offset(ino));
            match offset.and_then(|offset| Ok((offset, file.node().attr()?.size))) {
                Ok((offset, size)) => members.push(Member { offset, position, size, file }),
                Err(error) => missed.push((position, error)),
            }
        }
        members.sort_unstable_by_key(|member| (member.offset, member.position));
        (Batch { volume: self.opened().ok().cloned(), members }, missed)
    }

    /// Clones a tree, or a file, to a path that does not exist. Compressed contents are shared: they take
    /// more space only when the copy or its source is changed.
    ///
    /// # Errors
    ///
    /// As of [`clone_tree()`]; [`Error::Mounted`].
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.make_dir("/tree")?;
    /// files.write("/tree/f", b"contents")?;
    /// assert_eq!(files.clone_tree("/tree", "/copy").expect("cloned").files, 1);
    /// assert_eq!(files.read("/copy/f")?, b"contents");
    /// # Ok::<(), cffs::error::Error>(())
    /// ```
    pub fn clone_tree(
        &self,
        path: impl AsRef<[u8]>,
        new_path: impl AsRef<[u8]>,
    ) -> Result<Cloned, CloneError> {
        let failed = |error| CloneError::Failed { path: Vec::new(), error };
        let node = self.node_itself(path).map_err(failed)?;
        let (dir, name) = resolve::parent(&self.root(), new_path.as_ref()).map_err(failed)?;
        let watch: &mut CloneWatch<'_> = &mut |_, _| ControlFlow::Continue(());
        clone_tree(&Caller::ROOT, &|_, _, _| true, &node, &dir, &name, watch)
    }
}

/// Files that are open to be read together, in the order in which they are on the device.
pub struct Batch {
    /// `None` if no file could be opened.
    volume: Option<Arc<Volume>>,
    members: Vec<Member>,
}

struct Member {
    /// Where it is on the device.
    offset: u64,
    position: usize,
    size: u64,
    file: File,
}

/// How far a batch is.
#[derive(Default)]
struct Turns {
    /// The file that is taken next.
    next: usize,
    /// The first one that was not brought into memory yet.
    fetched: usize,
}

impl Batch {
    /// The positions of the files in the request, and their sizes when they were opened.
    pub fn sizes(&self) -> impl Iterator<Item = (usize, u64)> {
        self.members.iter().map(|member| (member.position, member.size))
    }

    /// Reads whole files, and passes each to `visit` with its position, as [`Files::read_many`] does.
    pub fn read_whole(&self, threads: NonZeroUsize, visit: impl Fn(usize, Result<&[u8]>) + Sync) {
        // A thread has one buffer for all its files: it stays in the processor's cache, and takes no memory
        // per file.
        self.read(threads, Vec::<u8>::new, |buffer, position, file| {
            buffer.clear();
            let read = file.read_pieces(&mut |piece| buffer.extend_from_slice(piece));
            visit(position, read.map(|()| &buffer[..]));
            true
        });
    }

    /// Calls `visit` to read each file, with its position, when the file's missing blocks were read into
    /// memory. `threads` threads call it, each with a value made by `start`, until it returns false.
    pub fn read<S>(
        &self,
        threads: NonZeroUsize,
        start: impl Fn() -> S + Sync,
        visit: impl Fn(&mut S, usize, &File) -> bool + Sync,
    ) {
        // The threads take the next files in turn, so that together they sweep over the device once. The
        // missing blocks of the next files are read in one sweep, for which all threads wait.
        let turns = Mutex::new(Turns::default());
        let take = || {
            let mut turns = turns.lock();
            let index = turns.next;
            let member = self.members.get(index)?;
            turns.next += 1;
            if index == turns.fetched {
                let next = self.members[index..].iter().map(|member| member.file.node().ino());
                turns.fetched += self.volume.as_ref().map_or(1, |volume| volume.fetch_batch(next));
            }
            Some(member)
        };
        let read = || {
            let mut own = start();
            while let Some(member) = take() {
                if !visit(&mut own, member.position, &member.file) {
                    turns.lock().next = self.members.len();
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads.get().min(self.members.len()) {
                scope.spawn(read);
            }
            read();
        });
    }
}
