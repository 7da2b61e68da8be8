//! Reading objects in chunks, of which some are kept in memory.
//!
//! A chunk that follows one at hand is read with those after it, since a request costs as much as the
//! transfer of a chunk. What is asked for by several threads at once is read by one of them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use object_store::path::Path;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, GuardResult};

use crate::cache::DiskCache;
use crate::error::Error;
use crate::format::{CHUNK_BYTES, Format, Object};
use crate::store::{self, Store};

/// So many chunks are read at once where an object is read on.
const CHUNKS_AHEAD: u64 = 7;
/// What is kept of what was read, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// Bytes of an object, and where in a buffer they belong.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The first byte in the buffer.
    pub target: usize,
    /// How many they are.
    pub len: u64,
    /// The object.
    pub object: Object,
    /// The first byte in the object.
    pub at: u64,
}

impl Wanted {
    fn chunks(&self) -> Range<u64> {
        self.at / CHUNK_BYTES..(self.at + self.len).div_ceil(CHUNK_BYTES)
    }
}

/// The objects of a volume, and of those that it was cloned from.
pub struct Chunks {
    store: Arc<Store>,
    volume: [u8; 16],
    origins: Vec<Path>,
    kept: Cache<(Object, u64), Bytes, ByLength>,
    /// Whether an object was gone that was to be read.
    has_lost: AtomicBool,
}

#[derive(Clone)]
struct ByLength;

impl Weighter<(Object, u64), Bytes> for ByLength {
    fn weight(&self, _: &(Object, u64), chunk: &Bytes) -> u64 {
        chunk.len() as u64
    }
}

impl Chunks {
    /// Nothing is read yet.
    pub fn new(store: Arc<Store>, format: &Format) -> Chunks {
        let items = (CACHE_BYTES / CHUNK_BYTES) as usize;
        Chunks {
            store,
            volume: format.uuid,
            origins: format.origins.iter().map(|prefix| Path::from(prefix.as_str())).collect(),
            kept: Cache::with_weighter(items, CACHE_BYTES, ByLength),
            has_lost: AtomicBool::new(false),
        }
    }

    /// Keeps the first chunk of a record that was written, or read for its head; a longer one is not kept.
    pub fn keep_record(&self, slot: u64, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        if bytes.len() as u64 <= CHUNK_BYTES {
            self.kept.insert((Object::record(slot), 0), bytes);
        }
    }

    /// Whether a read since the last call met an object that was collected.
    pub fn take_collected(&self) -> bool {
        self.has_lost.swap(false, Ordering::Relaxed)
    }

    /// Copies bytes of objects into a buffer, those that are not at hand by requests at once.
    ///
    /// # Errors
    ///
    /// [`Error::Collected`] if an object is not there any more; [`Error::Damaged`] if it is too short; those
    /// of the store.
    pub fn read(&self, wanted: &[Wanted], buf: &mut [u8]) -> Result<(), Error> {
        let mut keys: Vec<(Object, u64)> = wanted
            .iter()
            .flat_map(|piece| piece.chunks().map(|chunk| (piece.object, chunk)))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let chunks = self.get(&keys)?;
        for piece in wanted {
            let mut done = 0;
            while done < piece.len {
                let from = piece.at + done;
                let within = (from % CHUNK_BYTES) as usize;
                let size = (CHUNK_BYTES - from % CHUNK_BYTES).min(piece.len - done) as usize;
                let found = keys.binary_search(&(piece.object, from / CHUNK_BYTES)).ok();
                let chunk = found.and_then(|index| chunks.get(index));
                let Some(bytes) = chunk.and_then(|chunk| chunk.get(within..within + size)) else {
                    let why = format!("it ends before byte {}", from + size as u64);
                    if let Some(cache) = self.store.cache() {
                        cache.forget(&self.volume, (piece.object, from / CHUNK_BYTES));
                    }
                    return Err(Error::Damaged { object: self.path(piece.object)?.into(), why });
                };
                let target = piece.target + done as usize;
                buf[target..target + size].copy_from_slice(bytes);
                done += size as u64;
            }
        }
        Ok(())
    }

    /// The chunks with these keys, which are in order: so threads that wait for each other's do not wait in
    /// a circle.
    fn get(&self, keys: &[(Object, u64)]) -> Result<Vec<Bytes>, Error> {
        let mut found = vec![Bytes::new(); keys.len()];
        let mut guards = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            match self.kept.get_value_or_guard(key, None) {
                GuardResult::Value(chunk) => found[index] = chunk,
                GuardResult::Guard(guard) => match self.kept_here(*key) {
                    Some(chunk) => {
                        found[index] = chunk.clone();
                        let _ = guard.insert(chunk);
                    }
                    None => guards.push((index, guard)),
                },
                GuardResult::Timeout => {}
            }
        }
        // Chunks that follow each other in an object are one request.
        let mut ranges: Vec<(Object, Range<u64>)> = Vec::new();
        for (index, _) in &guards {
            let (object, chunk) = keys[*index];
            match ranges.last_mut() {
                Some((last, range)) if *last == object && range.contains(&chunk) => {}
                Some((last, range)) if *last == object && range.end == chunk => range.end += 1,
                _ => ranges.push((object, chunk..self.end_of_run(object, chunk))),
            }
        }
        let mut wanted = Vec::new();
        for (object, range) in &ranges {
            let path = self.path(*object)?;
            wanted.push((path, range.start * CHUNK_BYTES..range.end * CHUNK_BYTES));
        }
        let mut read = HashMap::new();
        let answers = if wanted.is_empty() {
            Vec::new()
        } else {
            self.store.get_many(&wanted).map_err(|error| self.collected(error))?
        };
        for ((object, range), bytes) in ranges.into_iter().zip(answers) {
            for (number, piece) in bytes.chunks(CHUNK_BYTES as usize).enumerate() {
                read.insert((object, range.start + number as u64), Bytes::copy_from_slice(piece));
            }
        }
        for (index, guard) in guards {
            let chunk = read.remove(&keys[index]).unwrap_or_default();
            found[index] = chunk.clone();
            // Only what was removed meanwhile is refused.
            let _ = guard.insert(chunk.clone());
            self.to_disk(keys[index], &chunk);
        }
        for (key, chunk) in read {
            self.kept.insert(key, chunk.clone());
            self.to_disk(key, &chunk);
        }
        Ok(found)
    }

    /// A chunk that a local disk has.
    fn kept_here(&self, key: (Object, u64)) -> Option<Bytes> {
        self.staged(key).or_else(|| self.kept_on_disk(key))
    }

    /// A chunk of a record that is not in the store yet.
    fn staged(&self, (object, chunk): (Object, u64)) -> Option<Bytes> {
        let slot = object.slot().filter(|_| object.origin() == 0)?;
        let bytes = self.store.staging()?.read(slot, chunk * CHUNK_BYTES, CHUNK_BYTES)?;
        Some(Bytes::from(bytes))
    }

    /// A chunk that the cache on a local disk has.
    fn kept_on_disk(&self, key: (Object, u64)) -> Option<Bytes> {
        let chunk = self.store.cache()?.get(&self.volume, key);
        self.store.counter().cached(chunk.as_ref().map(|chunk| chunk.len() as u64));
        chunk.map(Bytes::from)
    }

    fn to_disk(&self, key: (Object, u64), chunk: &[u8]) {
        if let Some(cache) = self.store.cache().filter(|_| !chunk.is_empty()) {
            self.store.counter().added(cache.put(&self.volume, key, chunk));
        }
    }

    /// Where a request ends that begins at a chunk that is missing.
    fn end_of_run(&self, object: Object, chunk: u64) -> u64 {
        let is_read_on = chunk > 0 && self.kept.contains_key(&(object, chunk - 1));
        let ahead = if is_read_on { CHUNKS_AHEAD } else { 1 };
        let is_at_hand = |key| {
            let has = |cache: &DiskCache| cache.has(&self.volume, key);
            self.kept.contains_key(&key) || self.store.cache().is_some_and(has)
        };
        let next = (chunk + 1..chunk + ahead).find(|next| is_at_hand((object, *next)));
        next.unwrap_or(chunk + ahead)
    }

    fn path(&self, object: Object) -> Result<Path, Error> {
        let name = object.name();
        match object.origin() {
            0 => Ok(self.store.path(&name)),
            number => match self.origins.get(number - 1) {
                Some(prefix) => Ok(store::below(prefix, &name)),
                None => {
                    let why = format!("the volume has no origin {number}");
                    Err(Error::Damaged { object: name, why })
                }
            },
        }
    }

    /// What a volume reads is there, unless it went on and collected it.
    fn collected(&self, error: Error) -> Error {
        match error {
            Error::Store { object, cause: cause @ object_store::Error::NotFound { .. } } => {
                self.has_lost.store(true, Ordering::Relaxed);
                Error::Collected { object, cause }
            }
            other => other,
        }
    }
}
