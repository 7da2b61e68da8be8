//! The requests of readers, with and without prefetch threads, and of writers.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::device::{Geometry, Hints, MemoryDevice};
use crate::format::Layout;
use crate::tuning;

const BLOCK: u32 = 4096;
const BLOCKS: u64 = 4096;

/// A device that can be made to fail at some of its bytes.
struct Moody {
    memory: MemoryDevice,
    longest_request: Option<u64>,
    bad: Mutex<Range<u64>>,
    /// The offsets and lengths of all reads, in the order in which they came.
    reads: Mutex<Vec<(u64, u64)>>,
    /// The lengths of all writes.
    writes: Mutex<Vec<u64>>,
    waits: Arc<Waits>,
    /// The number of concurrent reads that it claims to answer.
    parallel: u32,
    /// The current and the highest number of concurrent reads.
    at_once: Mutex<(u32, u32)>,
}

/// The number of waits.
#[derive(Debug, Default)]
struct Waits(AtomicU64);

impl Waiter for Waits {
    fn about_to_wait(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl BlockDevice for Moody {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bad = self.bad.lock().clone();
        if offset < bad.end && bad.start < offset + buf.len() as u64 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.reads.lock().push((offset, buf.len() as u64));
        if self.parallel > 1 {
            let mut at_once = self.at_once.lock();
            *at_once = (at_once.0 + 1, at_once.1.max(at_once.0 + 1));
            drop(at_once);
            thread::sleep(Duration::from_millis(30));
            self.at_once.lock().0 -= 1;
        }
        // A second thread could come first now.
        thread::yield_now();
        self.memory.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.writes.lock().push(bufs.iter().map(|buf| buf.len() as u64).sum());
        self.memory.write_at(offset, bufs)
    }
    fn barrier(&self) -> io::Result<()> {
        self.memory.barrier()
    }
    fn sync(&self) -> io::Result<()> {
        self.memory.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.discard(offset, len)
    }
    fn hints(&self) -> Hints {
        Hints {
            request_bytes_max: self.longest_request,
            parallel: self.parallel,
            ..Hints::default()
        }
    }
}

/// A cache over a device whose blocks begin with their numbers, and that takes a mebibyte at once.
fn cache() -> (Arc<Moody>, BufferCache) {
    cache_with(true, 4 * BLOCKS, Some(1 << 20))
}

fn cache_with(
    groups: bool,
    blocks: u64,
    longest_request: Option<u64>,
) -> (Arc<Moody>, BufferCache) {
    let tuning = Tuning::new(tuning::Device {
        break_even_bytes: tuning::BREAK_EVEN_BYTES,
        request_bytes_max: longest_request,
        parallel: 1,
        cache_bytes: blocks * u64::from(BLOCK),
    });
    cache_tuned(groups, tuning)
}

fn cache_tuned(groups: bool, tuning: Tuning) -> (Arc<Moody>, BufferCache) {
    let longest_request = tuning.device.request_bytes_max;
    let memory = MemoryDevice::new(BLOCKS * u64::from(BLOCK));
    for number in 0..BLOCKS {
        let offset = number * u64::from(BLOCK);
        memory.write_at(offset, &[IoSlice::new(&number.to_le_bytes())]).unwrap();
    }
    let (bad, reads, writes) = (Mutex::default(), Mutex::default(), Mutex::default());
    let (waits, parallel, at_once) = (Arc::default(), tuning.device.parallel, Mutex::default());
    let device =
        Arc::new(Moody { memory, longest_request, bad, reads, writes, waits, parallel, at_once });
    let layout = Layout {
        block_bytes: BLOCK,
        fragment_bytes: 1024,
        sector_bytes: BLOCK,
        segment_bytes: 16 * BLOCK,
        blocks: BLOCKS,
        cg_blocks: BLOCKS as u32,
        intent_log_half_blocks: 1,
        journal_cg: crate::units::CgIndex(0),
        journal_blocks: 0,
        count_blocks: 0,
    };
    let waiter = device.waits.clone();
    let cache = BufferCache::new(device.clone(), layout, tuning, groups, waiter);
    (device, cache)
}

fn check(cache: &BufferCache, number: u64) {
    let block = cache.read(BlockNo(number)).unwrap();
    assert_eq!(block[..8], number.to_le_bytes());
}

/// Waits for an action of other threads.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        thread::yield_now();
    }
}

#[test]
fn a_reader_in_order_costs_fewer_and_fewer_requests() {
    let (_, cache) = cache();
    (0..BLOCKS).for_each(|number| check(&cache, number));
    let stats = cache.stats();
    assert_eq!(stats.read_bytes, BLOCKS * u64::from(BLOCK));
    assert!(stats.reads < 16, "{stats:?}");
}

#[test]
fn without_groups_a_miss_reads_only_the_requested_blocks() {
    let (_, cache) = cache_with(false, 4 * BLOCKS, None);
    (0..64).for_each(|number| check(&cache, number));
    cache.read_near(BlockNo(100), 5, BlockNo(BLOCKS)).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.reads, stats.read_bytes), (65, 69 * u64::from(BLOCK)));
    // A large file is read ahead, as anywhere.
    for piece in (1024..BLOCKS).step_by(32) {
        cache.read_near(BlockNo(piece), 32, BlockNo(BLOCKS)).unwrap();
    }
    assert!(cache.stats().reads < 65 + 24, "{:?}", cache.stats());
}

#[test]
fn nothing_is_prefetched_beyond_the_end_of_a_file() {
    let read = |threads| {
        let (_, cache) = cache();
        cache.with_prefetch(threads, || {
            (0..640).for_each(|n| drop(cache.read_near(BlockNo(n), 32, BlockNo(640)).unwrap()));
        });
        let next = cache.resident(BlockNo(640));
        (cache.stats().read_bytes / u64::from(BLOCK), next)
    };
    assert_eq!((read(0), read(2)), ((640, false), (640, false)));
}

#[test]
fn a_stream_is_prefetched_and_each_block_read_once() {
    let (_, cache) = cache();
    cache.with_prefetch(2, || {
        (0..32).for_each(|number| check(&cache, number));
        eventually("what follows is prefetched", || cache.resident(BlockNo(32)));
        (32..BLOCKS).for_each(|number| check(&cache, number));
    });
    let stats = cache.stats();
    assert_eq!(stats.read_bytes, BLOCKS * u64::from(BLOCK));
    // The runs get longer up to a mebibyte, of which there are 16.
    assert!(stats.reads < 16 + 6, "{stats:?}");
}

/// A device that answers many requests at once, such as a store, gets all queued runs.
#[test]
fn a_device_without_an_arm_has_many_requests_at_once() {
    let mut tuned = Tuning::for_cache(4 * BLOCKS * u64::from(BLOCK)).device;
    (tuned.request_bytes_max, tuned.parallel) = (Some(1 << 20), 16);
    let (device, cache) = cache_tuned(true, Tuning::new(tuned));
    cache.with_prefetch(2, || {
        cache.prefetch_run(0..BLOCKS, Class::Files).unwrap();
        (0..BLOCKS).for_each(|number| check(&cache, number));
    });
    let most = device.at_once.lock().1;
    assert!(most > 2, "{most} requests at once");
}

/// A reader of batches requests the next one when it has used the last. Meanwhile the device would be idle.
#[test]
fn batches_in_sequence_are_read_ahead_where_many_requests_are_answered_at_once() {
    for (parallel, reads_ahead) in [(1, false), (16, true)] {
        let mut tuned = Tuning::for_cache(4 * BLOCKS * u64::from(BLOCK)).device;
        (tuned.request_bytes_max, tuned.parallel) = (Some(1 << 20), parallel);
        let (_, cache) = cache_tuned(true, Tuning::new(tuned));
        cache.with_prefetch(2, || {
            for first in (0..512).step_by(64) {
                if !cache.claims(BlockNo(first)) {
                    cache.prefetch_in_sequence(
                        vec![first..first + 32, first + 32..first + 64],
                        Class::Files,
                    );
                }
            }
            assert_eq!(cache.claims(BlockNo(512)), reads_ahead, "{parallel} requests at once");
            cache.prefetch_in_sequence(vec![3000..3032, 3032..3064], Class::Files);
            assert!(!cache.claims(BlockNo(3064)), "a batch elsewhere continues nothing");
        });
    }
}

/// The kernel sends the pieces of a request that it has to split in any order; a short request costs as much
/// as a long one.
#[test]
fn a_run_is_queued_in_requests_as_long_as_the_device_takes() {
    let cases = [
        (None, vec![256, 512, 1024, 1024, 1024, 256]),
        (Some(4 << 20), vec![256, 512, 1024, 1024, 1024, 256]),
        (Some(1280 << 10), [vec![320; 12], vec![256]].concat()),
        (Some(120 << 10), [vec![240; 17], vec![16]].concat()),
    ];
    for (longest, expected) in cases {
        let (device, cache) = cache_with(true, 4 * BLOCKS, longest);
        cache.with_prefetch(2, || {
            cache.prefetch_run(0..BLOCKS, Class::Files).unwrap();
            (0..BLOCKS).for_each(|number| check(&cache, number));
        });
        let mut reads = device.reads.lock().clone();
        reads.sort_unstable();
        let blocks: Vec<u64> = reads.iter().map(|(_, len)| len / u64::from(BLOCK)).collect();
        assert_eq!(blocks, expected, "{longest:?}");
    }
}

#[test]
fn a_run_is_written_in_whole_requests_several_at_once() {
    let cases = [
        (None, vec![2048, 1952]),
        (Some(4 << 20), vec![2048, 1952]),
        (Some(1280 << 10), vec![1920, 1920, 160]),
        (Some(120 << 10), vec![1920, 1920, 160]),
    ];
    for (longest, expected) in cases {
        let (device, cache) = cache_with(true, 4 * BLOCKS, longest);
        let mut writes = WriteSet::default();
        let image = Arc::new(Block::zeroed(BLOCK as usize));
        (0..4000).for_each(|at| writes.put_block(Phase::New, BlockNo(at), image.clone()));
        writes.commit(&cache).unwrap();
        let writes = device.writes.lock();
        let blocks: Vec<u64> = writes.iter().map(|len| len / u64::from(BLOCK)).collect();
        assert_eq!(blocks, expected, "{longest:?}");
    }
}

#[test]
fn a_streams_windows_are_whole_requests() {
    for (request, window) in [(320, 960), (256, 1024), (1024, 1024), (2048, 1024)] {
        let tuning = Tuning::new(tuning::Device {
            break_even_bytes: tuning::BREAK_EVEN_BYTES,
            request_bytes_max: Some(request * u64::from(BLOCK)),
            parallel: 1,
            cache_bytes: 4 * BLOCKS * u64::from(BLOCK),
        });
        let streams = Streams::new(&tuning, BLOCK, 16);
        streams.read(0, 0..16);
        let runs = (0..10).scan(0, |at, _| {
            let run = streams.next_run(*at, u64::MAX)?;
            *at = run.start;
            Some(run.end - run.start)
        });
        assert_eq!(runs.max(), Some(window), "of {request} blocks");
    }
}

/// Each request that a reader reaches triggers another one: a store always has the same number in progress,
/// and none comes twice.
#[test]
fn a_streams_window_slides_where_many_requests_are_answered_at_once() {
    let request = tuning::BREAK_EVEN_BYTES * 4 / u64::from(BLOCK);
    let tuning = Tuning::new(tuning::Device {
        break_even_bytes: tuning::BREAK_EVEN_BYTES,
        request_bytes_max: None,
        parallel: 16,
        cache_bytes: 256 << 20,
    });
    let window = tuning.reading.window_bytes_max / u64::from(BLOCK);
    assert_eq!(window, 4 * request);
    let streams = Streams::new(&tuning, BLOCK, 16);
    streams.read(0, 0..16);
    let (mut at, mut end) = (0, 16);
    while end - at < window - request {
        let run = streams.next_run(at, u64::MAX).expect("it grows");
        assert_eq!(run.start, end);
        (at, end) = (run.start, run.end);
    }
    for _ in 0..8 {
        // A reader may skip some blocks of a request, and come back.
        let run = streams.next_run(at + 3, u64::MAX).expect("it goes on");
        assert_eq!(run.start, end);
        assert_eq!(streams.next_run(at + 4, u64::MAX), None, "it is requested already");
        (at, end) = (at + request, run.end);
        assert!((window - request..=window).contains(&(end - at)), "{at} to {end}");
    }
    assert_eq!(streams.next_run(at, end), None, "nothing beyond the limit");
}

#[test]
fn the_first_block_of_a_long_request_is_cached_before_the_last() {
    let queue = RunQueue::new(&Tuning::for_cache(256 << 20), BLOCK);
    queue.push(0..1024, 1024, false, Class::Files);
    assert!(queue.is_in_flight(0) && queue.is_in_flight(1023));
    queue.done(0, 256);
    assert!(!queue.is_in_flight(255) && queue.is_in_flight(256) && queue.is_in_flight(1023));
    queue.done(256, 1024);
    assert!(!queue.is_in_flight(1023));
}

#[test]
fn a_reader_waits_for_a_block_in_flight() {
    let (_, cache) = cache();
    cache.with_prefetch(2, || {
        cache.prefetch_run(100..3000, Class::Files).unwrap();
        cache.prefetch_run(50..1100, Class::Files).unwrap();
        [2999, 1500, 60, 100].into_iter().for_each(|number| check(&cache, number));
        eventually("all of it comes", || (50..3000).all(|n| cache.resident(BlockNo(n))));
    });
    assert_eq!(cache.stats().read_bytes, 2950 * u64::from(BLOCK), "each block is read once");
}

/// If two threads sent the two halves of a run at once, they could arrive in either order, and the arm would
/// wait for another rotation.
#[test]
fn runs_reach_the_device_in_order_with_any_reader() {
    let (device, mut cache) = cache();
    // Independent of how long a thread is held up.
    cache.queue.head_start = Duration::from_secs(3600);
    cache.with_prefetch(4, || {
        cache.prefetch_run(0..2048, Class::Files).unwrap();
        cache.prefetch_run(3000..4000, Class::Files).unwrap();
        let all = || (0..2048).chain(3000..4000).all(|n| cache.resident(BlockNo(n)));
        eventually("all of it comes", all);
    });
    let reads = device.reads.lock();
    let within = |run: Range<u64>| -> Vec<(u64, u64)> {
        let blocks = run.start * u64::from(BLOCK)..run.end * u64::from(BLOCK);
        reads.iter().filter(|(at, _)| blocks.contains(at)).copied().collect()
    };
    let (low, high) = (within(0..2048), within(3000..4000));
    assert_eq!((low.len(), high.len()), (8, 4), "a mebibyte at a time: {reads:?}");
    for run in [low, high] {
        assert!(run.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0), "{reads:?}");
    }
    let second = reads.iter().position(|(at, _)| *at >= 3000 * u64::from(BLOCK));
    assert!(
        second >= Some(7),
        "the arm goes on to the second run from the end of the first: {reads:?}"
    );
}

/// A reader that misses a block of a stream gets its run before the next ones, which are queued at once.
#[test]
fn a_stream_reaches_the_device_in_order() {
    let (device, mut cache) = cache();
    cache.queue.head_start = Duration::from_secs(3600);
    cache.with_prefetch(2, || (0..BLOCKS).for_each(|number| check(&cache, number)));
    let reads = device.reads.lock();
    assert!(reads.is_sorted(), "{reads:?}");
}

#[test]
fn without_threads_a_run_is_read_by_its_reader() {
    let (_, cache) = cache();
    cache.prefetch_run(0..2000, Class::Files).unwrap();
    assert_eq!(cache.stats().reads, 2);
    cache.with_prefetch(2, || {});
    cache.prefetch_run(2000..2100, Class::Files).unwrap();
    assert!(cache.resident(BlockNo(2099)), "the threads have ended");
}

#[test]
fn a_reader_has_the_error_of_what_could_not_be_prefetched() {
    let (device, cache) = cache();
    cache.with_prefetch(2, || {
        *device.bad.lock() = 0..u64::MAX;
        cache.prefetch_run(0..64, Class::Files).unwrap();
        assert!(cache.read(BlockNo(10)).is_err());
        *device.bad.lock() = 0..0;
        check(&cache, 10);
    });
}

#[test]
fn only_the_reader_of_a_bad_block_gets_its_error() {
    let (device, cache) = cache();
    *device.bad.lock() = 5 * u64::from(BLOCK)..6 * u64::from(BLOCK);
    check(&cache, 4);
    assert!(cache.read(BlockNo(5)).is_err());
    check(&cache, 6);
}

#[test]
fn a_reader_at_random_is_given_the_region_in_which_it_missed_before() {
    let (_, cache) = cache();
    [100, 2048, 400, 900].into_iter().for_each(|number| check(&cache, number));
    assert!((0..1024).all(|number| cache.resident(BlockNo(number))), "four mebibytes");
    // Elsewhere, a miss still costs one segment.
    let there = (1024..BLOCKS).filter(|number| cache.resident(BlockNo(*number)));
    assert_eq!(there.collect::<Vec<u64>>(), (2048..2064).collect::<Vec<u64>>());
    let stats = cache.stats();
    // The few blocks of it that were cached are read again.
    assert_eq!((stats.reads, stats.read_bytes), (4, (3 * 16 + 1024) * u64::from(BLOCK)));
    // There the second miss is enough, since the reader continues.
    check(&cache, 2500);
    assert!((2048..3072).all(|number| cache.resident(BlockNo(number))), "the next four");
    [3500, 3100].into_iter().for_each(|number| check(&cache, number));
    assert!((3072..4096).all(|number| cache.resident(BlockNo(number))), "and the next");
}

#[test]
fn another_device_is_given_other_regions() {
    for (break_even_bytes, region) in [(256 << 10, 256), (512 << 10, 512), (1 << 20, 1024)] {
        let cache_bytes = 4 * BLOCKS * u64::from(BLOCK);
        let (request_bytes_max, parallel) = (None, 1);
        let device = tuning::Device { break_even_bytes, request_bytes_max, parallel, cache_bytes };
        let (_, cache) = cache_tuned(true, Tuning::new(device));
        [100, 200, 20].into_iter().for_each(|number| check(&cache, number));
        let read = (0..BLOCKS).filter(|number| cache.resident(BlockNo(*number))).count();
        assert_eq!(read, region, "of {break_even_bytes} bytes");
    }
}

#[test]
fn opening_does_not_count_as_a_random_reader() {
    let (_, cache) = cache();
    // The superblock, the system area, the root and its files.
    [0, 1, 144, 700].into_iter().for_each(|number| check(&cache, number));
    assert_eq!(cache.stats().read_bytes, 3 * 16 * u64::from(BLOCK));
    check(&cache, 400);
    assert!(cache.stats().read_bytes > 512 * u64::from(BLOCK), "the third of a reader");
}

#[test]
fn regions_that_did_not_fit_are_not_read_again() {
    // The requests add up to twice the size of the cache.
    let (device, cache) = cache_with(true, BLOCKS / 2, Some(1 << 20));
    let at_random = |step: u64| {
        let word = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 52
    };
    let longest_request = |steps: Range<u64>| {
        device.reads.lock().clear();
        steps.for_each(|step| check(&cache, at_random(step)));
        device.reads.lock().iter().map(|(_, bytes)| bytes / u64::from(BLOCK)).max()
    };
    assert!(longest_request(0..300) > Some(64), "regions are read");
    assert!(longest_request(300..600) < Some(64), "each miss reads a segment or two");
}

#[test]
fn prefetched_sectors_outlast_the_contents_of_a_tree() {
    let (_, cache) = cache_with(true, 1024, Some(1 << 20));
    let contents = |run: Range<u64>| {
        for first in run.step_by(64) {
            cache.prefetch_run(first..first + 64, Class::Files).unwrap();
            (first..first + 64)
                .for_each(|n| drop(cache.read_near(BlockNo(n), 1, BlockNo(BLOCKS)).unwrap()));
        }
    };
    contents(0..1024);
    cache.prefetch_run(1024..1088, Class::Metadata).unwrap();
    contents(1088..BLOCKS);
    // The cache is divided by hashes, not quite evenly.
    let stayed = (1024..1088).filter(|number| cache.resident(BlockNo(*number))).count();
    assert!(stayed > 56, "{stayed} of 64");
}

#[test]
fn the_front_end_learns_of_each_thread_that_waits_for_the_device() {
    let (device, cache) = cache();
    let waits = || device.waits.0.swap(0, Ordering::Relaxed);
    check(&cache, 100);
    assert_eq!(waits(), 1, "a miss");
    check(&cache, 100);
    assert_eq!(waits(), 0, "a hit");
    cache.read_uncached(BlockNo(7), &mut [0; BLOCK as usize]).unwrap();
    assert_eq!(waits(), 1, "a read past the cache");
    let mut writes = WriteSet::default();
    let image = Arc::new(Block::zeroed(BLOCK as usize));
    writes.put_block(Phase::New, BlockNo(9), image.clone());
    writes.put_block(Phase::Change, BlockNo(11), image);
    writes.commit(&cache).unwrap();
    assert_eq!(waits(), 4, "two writes, the barrier between them, and the flush");
    cache.queue.begin(1);
    cache.queue.push(2000..2001, 1, false, Class::Files);
    thread::scope(|scope| {
        scope.spawn(|| check(&cache, 2000));
        eventually("a reader waits for what is in flight", || waits() == 1);
        cache.queue.done(2000, 2001);
    });
}

/// Kept blocks come back if the cache has dropped them, but not if they were rewritten meanwhile.
#[test]
fn pinned_blocks_are_restored_unless_they_were_rewritten() {
    let (_, cache) = cache_with(false, 64, None);
    let mut kept = PinnedBlocks::default();
    for number in [10, 200, 300] {
        check(&cache, number);
        cache.clean.pin(number..number + 1, &mut kept);
    }
    let mut writes = WriteSet::default();
    let mut image = Block::zeroed(BLOCK as usize);
    image[..8].copy_from_slice(&7_u64.to_le_bytes());
    writes.put_block(Phase::New, BlockNo(200), Arc::new(image));
    writes.commit(&cache).unwrap();
    let is_there = |number| cache.resident(BlockNo(number));
    // Reads of other blocks take their place.
    [10, 200, 300].into_iter().for_each(|number| drop(cache.clean.map.remove(&BlockNo(number))));

    cache.clean.restore(&kept);
    let before = cache.stats().reads;
    [10, 300].into_iter().for_each(|number| check(&cache, number));
    assert_eq!(cache.stats().reads, before, "they have come back");
    assert_eq!(cache.read(BlockNo(200)).unwrap()[..8], 7_u64.to_le_bytes(), "as it was before");

    cache.clean.unpin(kept);
    assert!(![10, 200, 300].into_iter().any(is_there), "no reader needs them again");
}
