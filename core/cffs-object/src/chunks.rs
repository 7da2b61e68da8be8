//! Reading objects in chunks, with a cache in memory.
//!
//! A request costs as much as the transfer of several chunks, so a missing chunk is read together with its
//! neighbours, and one that follows cached chunks together with many after it. Runs begin at the missing
//! chunk instead of at a fixed alignment.
//!
//! Invariant: a chunk is requested once. The thread that requests it holds its guard, and others wait.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult, PlaceholderGuard};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::answer;
use crate::cache::Key;
use crate::error::Error;
use crate::format::{CHUNK_BYTES, Object, REQUEST_BYTES};
use crate::identity::{Format, Origin};
use crate::location::prefix_of;
use crate::store::{self, Address, Store};
use crate::vault::Instance;

/// The number of chunks in a request, from the missing one on. The chunk before it is requested as well.
const CHUNKS_AFTER: u64 = REQUEST_BYTES / CHUNK_BYTES;
/// The same number if an object is read sequentially: the rest of an object of 8 MiB.
const CHUNKS_READ_ON: u64 = 7 * CHUNKS_AFTER;
/// The size of the cache in memory.
const CACHE_BYTES: u64 = 64 << 20;
/// The part of it for chunks that were used more than once. The rest holds the read-ahead of several readers
/// until it is used.
const CACHE_PART_USED: f64 = 0.5;

/// Bytes of an object, and their place in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The first byte in the buffer.
    pub target: usize,
    /// Their number.
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
    origins: Vec<Origin>,
    kept: Cache<Key, Bytes, ByLength>,
    /// Whether a read found a missing object.
    has_lost: AtomicBool,
}

/// The name under which a chunk is sealed for the cache on a local disk.
fn name_here((object, chunk): Key) -> String {
    let (source, number) = object.key();
    format!("cache/{source:x}-{number:x}-{chunk:x}")
}

#[derive(Clone)]
struct ByLength;

impl Weighter<Key, Bytes> for ByLength {
    fn weight(&self, _: &Key, chunk: &Bytes) -> u64 {
        chunk.len() as u64
    }
}

fn cache_of_chunks() -> Cache<Key, Bytes, ByLength> {
    let options = OptionsBuilder::new()
        .estimated_items_capacity((CACHE_BYTES / CHUNK_BYTES) as usize)
        .weight_capacity(CACHE_BYTES)
        .hot_allocation(CACHE_PART_USED)
        // One shard, so that read-ahead is kept no matter how its keys hash.
        .shards(1)
        .build()
        .expect("capacities are given");
    Cache::with_options(options, ByLength, Hasher::default(), Lifecycle::default())
}

type Hasher = DefaultHashBuilder;
type Lifecycle = DefaultLifecycle<Key, Bytes>;
/// The right to request a chunk. While it lasts, others wait for the chunk.
type Guard<'a> = PlaceholderGuard<'a, Key, Bytes, ByLength, Hasher, Lifecycle>;

/// Adjacent chunks of an object that one request reads.
struct Run<'a> {
    object: Object,
    first: u64,
    guards: Vec<Guard<'a>>,
    /// The end of the longest run for one request, if no cached chunk ends it earlier.
    end_wanted: u64,
}

impl<'a> Run<'a> {
    /// A run of one chunk.
    fn alone(((object, first), guard): (Key, Guard<'a>)) -> Run<'a> {
        Run { object, first, guards: vec![guard], end_wanted: first + 1 }
    }

    fn end(&self) -> u64 {
        self.first + self.guards.len() as u64
    }
}

impl Chunks {
    /// The objects, without cached chunks.
    pub fn new(store: Arc<Store>, format: &Format) -> Chunks {
        Chunks {
            store,
            volume: format.uuid,
            origins: format.origins.clone(),
            kept: cache_of_chunks(),
            has_lost: AtomicBool::new(false),
        }
    }

    /// The UUID of the volume.
    pub fn volume(&self) -> [u8; 16] {
        self.volume
    }

    /// Caches a record that was just written, or the part that was read for its head. Long records are not
    /// cached.
    pub fn keep_record(&self, record: Object, bytes: &[u8]) {
        if bytes.len() as u64 <= REQUEST_BYTES {
            for (chunk, piece) in (0..).zip(bytes.chunks(CHUNK_BYTES as usize)) {
                self.kept.insert((record, chunk), Bytes::copy_from_slice(piece));
            }
        }
    }

    /// Whether a read since the last call found that an object was collected.
    pub fn take_collected(&self) -> bool {
        self.has_lost.swap(false, Ordering::Relaxed)
    }

    /// Copies bytes of objects into a buffer; missing ones are read with concurrent requests.
    ///
    /// # Errors
    ///
    /// [`Error::Collected`] if an object no longer exists; [`Error::Damaged`] if it is too short; errors of
    /// the store and of the staging directory.
    pub fn read(&self, wanted: &[Wanted], buf: &mut [u8]) -> Result<(), Error> {
        let mut keys: Vec<Key> = wanted
            .iter()
            .flat_map(|piece| piece.chunks().map(|chunk| (piece.object, chunk)))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let chunks = self.get(&keys, buf.len() as u64 > REQUEST_BYTES)?;
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
                    return Err(Error::Damaged {
                        object: self.address(piece.object)?.path.into(),
                        why,
                    });
                };
                let target = piece.target + done as usize;
                buf[target..target + size].copy_from_slice(bytes);
                done += size as u64;
            }
        }
        Ok(())
    }

    /// The chunks with these keys, in order: missing ones by concurrent requests, then those that other
    /// threads have requested. No guard is held while waiting for other threads, so that threads cannot wait
    /// for each other in a circle. `is_long`: the read is longer than a request for one chunk.
    fn get(&self, keys: &[Key], is_long: bool) -> Result<Vec<Bytes>, Error> {
        debug_assert!(keys.is_sorted_by(|one, next| one < next), "each key once, in order");
        let mut found: Vec<Option<Bytes>> = vec![None; keys.len()];
        // Whether neighbours of missing chunks are requested as well.
        let mut reads_ahead = true;
        loop {
            let mut missing = Vec::new();
            let mut awaited = None;
            for (index, key) in keys.iter().enumerate() {
                if found[index].is_some() {
                    continue;
                }
                match self.claim(*key) {
                    GuardResult::Timeout => awaited = awaited.or(Some(index)),
                    claimed => found[index] = self.use_claim(*key, claimed, &mut missing)?,
                }
            }
            if let Some(index) = awaited.filter(|_| missing.is_empty()) {
                // If the other thread had an error, this one requests the chunk. Threads that released the
                // guard and claimed again could pass it to each other without end.
                let key = keys[index];
                let claimed = self.kept.get_value_or_guard(&key, None);
                found[index] = self.use_claim(key, claimed, &mut missing)?;
            } else if missing.is_empty() {
                return Ok(found.into_iter().flatten().collect());
            }
            if !missing.is_empty() {
                let runs = match reads_ahead {
                    true => self.runs_of(missing, is_long),
                    false => missing.into_iter().map(Run::alone).collect(),
                };
                let read = match self.fetch(runs) {
                    // A neighbour may be damaged, which this read does not need.
                    Err(Error::Damaged { .. }) if reads_ahead => {
                        reads_ahead = false;
                        continue;
                    }
                    read => read?,
                };
                for (key, chunk) in keys.iter().zip(&mut found) {
                    *chunk = chunk.take().or_else(|| read.get(key).cloned());
                }
            }
        }
    }

    /// The chunk, if it is cached or on a local disk; otherwise the right to request it becomes one of
    /// `missing`.
    fn use_claim<'a>(
        &'a self,
        key: Key,
        claimed: GuardResult<'a, Key, Bytes, ByLength, Hasher, Lifecycle>,
        missing: &mut Vec<(Key, Guard<'a>)>,
    ) -> Result<Option<Bytes>, Error> {
        Ok(match claimed {
            GuardResult::Value(chunk) => Some(chunk),
            GuardResult::Timeout => None,
            GuardResult::Guard(guard) => {
                let chunk = self.kept_here(key)?;
                match &chunk {
                    // Only chunks that were removed meanwhile are refused, here and below.
                    Some(chunk) => drop(guard.insert(chunk.clone())),
                    None => missing.push((key, guard)),
                }
                chunk
            }
        })
    }

    /// A chunk, or the right to request it, unless another thread has that.
    fn claim(&self, key: Key) -> GuardResult<'_, Key, Bytes, ByLength, Hasher, Lifecycle> {
        self.kept.get_value_or_guard(&key, Some(Duration::ZERO))
    }

    /// Returns the runs of missing chunks to request.
    fn runs_of<'a>(&'a self, missing: Vec<(Key, Guard<'a>)>, is_long: bool) -> Vec<Run<'a>> {
        let mut runs: Vec<Run<'a>> = Vec::new();
        for ((object, chunk), guard) in missing {
            let mut run = match runs.pop_if(|last| last.object == object && last.end() == chunk) {
                Some(last) => last,
                None => self.run_before(object, chunk, is_long),
            };
            run.guards.push(guard);
            while run.end() < run.end_wanted
                && let GuardResult::Guard(guard) = self.claim((object, run.end()))
                && !self.is_on_disk((object, run.end()))
            {
                run.guards.push(guard);
            }
            runs.push(run);
        }
        runs
    }

    /// The run of a missing chunk. It begins one chunk earlier, unless that one is cached or requested: then
    /// the object is read sequentially, and the run is long. The run of a long read at the beginning of an
    /// object is long as well.
    fn run_before(&self, object: Object, chunk: u64, is_long: bool) -> Run<'_> {
        let mut run =
            Run { object, first: chunk, guards: Vec::new(), end_wanted: chunk + CHUNKS_AFTER };
        let Some(before) = chunk.checked_sub(1) else {
            if is_long {
                run.end_wanted = CHUNKS_READ_ON;
            }
            return run;
        };
        match self.claim((object, before)) {
            GuardResult::Value(_) | GuardResult::Timeout => run.end_wanted = chunk + CHUNKS_READ_ON,
            GuardResult::Guard(_) if self.is_on_disk((object, before)) => {}
            GuardResult::Guard(guard) => (run.first, run.guards) = (before, vec![guard]),
        }
        run
    }

    fn is_on_disk(&self, key: Key) -> bool {
        self.store.cache().is_some_and(|cache| cache.has(&self.volume, key))
    }

    /// Requests runs concurrently, caches and returns their chunks; returns nothing for a chunk that should
    /// exist and does not.
    fn fetch(&self, runs: Vec<Run<'_>>) -> Result<HashMap<Key, Bytes>, Error> {
        let mut wanted = Vec::new();
        for run in &runs {
            let range = run.first * CHUNK_BYTES..run.end() * CHUNK_BYTES;
            wanted.push((self.address(run.object)?, range));
        }
        let answers = self.store.get_many(&wanted).map_err(|error| self.collected(error))?;
        let mut read = HashMap::new();
        for (run, bytes) in runs.into_iter().zip(answers) {
            let mut pieces = bytes.chunks(CHUNK_BYTES as usize);
            for (chunk, guard) in (run.first..).zip(run.guards) {
                // Nothing follows the end of the object.
                let chunk_bytes = Bytes::copy_from_slice(pieces.next().unwrap_or_default());
                let key = (run.object, chunk);
                assert!(
                    chunk_bytes.len() as u64 <= CHUNK_BYTES,
                    "a chunk is no longer than its unit"
                );
                if !chunk_bytes.is_empty() {
                    let _ = guard.insert(chunk_bytes.clone());
                    self.to_disk(key, &chunk_bytes);
                }
                read.insert(key, chunk_bytes);
            }
        }
        Ok(read)
    }

    /// A chunk from a local disk: staged or cached.
    fn kept_here(&self, key: Key) -> Result<Option<Bytes>, Error> {
        Ok(self.staged(key)?.or_else(|| self.kept_on_disk(key)))
    }

    /// A chunk of a record that is not in the store yet.
    fn staged(&self, (object, chunk): Key) -> Result<Option<Bytes>, Error> {
        let slot = object.slot().filter(|_| object.origin() == 0);
        let (Some(slot), Some(staging)) = (slot, self.store.staging()) else { return Ok(None) };
        let read = staging.read(slot, chunk * CHUNK_BYTES, CHUNK_BYTES);
        read.map_err(staging.failed())
    }

    /// A chunk from the cache on a local disk.
    fn kept_on_disk(&self, key: Key) -> Option<Bytes> {
        let cache = self.store.cache()?;
        let chunk = cache.get(&self.volume, key).and_then(|chunk| {
            let opened = self.store.open_here(&name_here(key), chunk);
            if let Err(why) = &opened {
                tracing::warn!(why, "a cached chunk is read from the store again");
                cache.forget(&self.volume, key);
            }
            opened.ok()
        });
        self.store.counter().cached(chunk.as_ref().map(|chunk| chunk.len() as u64));
        chunk
    }

    fn to_disk(&self, key: Key, chunk: &[u8]) {
        if let Some(cache) = self.store.cache() {
            let sealed = self.store.seal_here(&name_here(key), chunk);
            self.store.counter().added(cache.put(&self.volume, key, &sealed));
        }
    }

    /// The address of an object.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if the volume has no such origin.
    pub fn address(&self, object: Object) -> Result<Address, Error> {
        let name = object.name();
        let instance = match object.slot() {
            Some(_) => Instance::Known(object.instance()),
            None => Instance::Named,
        };
        match object.origin() {
            0 => Ok(Address { instance, ..self.store.address(&name) }),
            number => match self.origins.get(number - 1) {
                Some(Origin { uuid, prefix }) => {
                    let path = store::below(&prefix_of(prefix), &name);
                    Ok(Address { path, owner: *uuid, name, instance })
                }
                None => {
                    let why = format!("the volume has no origin {number}");
                    Err(Error::Damaged { object: name, why })
                }
            },
        }
    }

    /// Turns a missing object into [`Error::Collected`]: a volume refers only to objects that exist, until
    /// its writer collects them.
    fn collected(&self, error: Error) -> Error {
        match error {
            Error::Store { object, cause, .. } if answer::lacks_object(&cause) => {
                self.has_lost.store(true, Ordering::Relaxed);
                Error::Collected { object, cause }
            }
            other => other,
        }
    }
}
