//! Runs every fuzz target with random inputs from a seed, for a few seconds each, in every test run and with
//! any compiler. `make fuzz` runs them for longer, guided by coverage.
//!
//! `CFFS_FUZZ_SECONDS` sets how long each target runs, `CFFS_FUZZ_SEED` the first seed. A failure prints the
//! seed of its input, which repeats it.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cffs_fuzz::{TARGETS, target};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const SECONDS_DEFAULT: u64 = 5;
/// A single input takes milliseconds; this long counts as a hang.
const HANG: Duration = Duration::from_secs(60);
/// The maximum memory of all running targets together. The sample volumes have 4 MiB each.
const MEMORY_BYTES_MAX: usize = 512 << 20;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")),
        Err(_) => default,
    }
}

/// The next number of the sequence (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The input of a seed: mostly short, since an input with few changes reaches more code.
fn input(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let len = match next(&mut state) % 16 {
        0 => next(&mut state) % 4096,
        1..=3 => next(&mut state) % 256,
        _ => next(&mut state) % 48,
    };
    (0..len).map(|_| next(&mut state) as u8).collect()
}

/// Ends the process if a target hangs in one input.
fn watch(name: &'static str, at: Arc<AtomicU64>, done: mpsc::Receiver<()>) {
    let mut last = None;
    while let Err(mpsc::RecvTimeoutError::Timeout) = done.recv_timeout(HANG) {
        let now = at.load(Ordering::Relaxed);
        if last.replace(now) == Some(now) {
            // Not by `eprintln`, which the test harness keeps until the test ends.
            let _ = writeln!(io::stderr(), "{name} hangs: repeat with CFFS_FUZZ_SEED={now}");
            std::process::abort();
        }
    }
}

fn run(name: &'static str) {
    let seconds = setting("CFFS_FUZZ_SECONDS", SECONDS_DEFAULT);
    let first = setting("CFFS_FUZZ_SEED", 0);
    let target = target(name);
    let at = Arc::new(AtomicU64::new(first));
    let (done, is_done) = mpsc::channel();
    let watcher = std::thread::spawn({
        let at = Arc::clone(&at);
        move || watch(name, at, is_done)
    });
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut inputs = 0u64;
    // At least one, so that a seed repeats its failure however slow the machine is.
    while inputs == 0 || Instant::now() < until {
        let seed = first + inputs;
        at.store(seed, Ordering::Relaxed);
        let bytes = input(seed);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&bytes))) {
            eprintln!("{name} fails: repeat with CFFS_FUZZ_SEED={seed}; its input: {bytes:02x?}");
            resume_unwind(panic);
        }
        let peak = ALLOCATOR.peak_usage();
        assert!(peak < MEMORY_BYTES_MAX, "{name}, CFFS_FUZZ_SEED={seed}: {peak} bytes of memory");
        inputs += 1;
    }
    drop(done);
    watcher.join().expect("the watcher ends");
    eprintln!("{name}: {inputs} inputs");
}

/// Makes a test of each target, so that they run concurrently.
macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_run() {
            let here = [$(stringify!($name)),*];
            assert_eq!(here.to_vec(), TARGETS.map(|(name, _)| name).to_vec());
        }
    };
}

targets! {
    superblock,
    cylinder_group,
    extents,
    attributes,
    quotas,
    locator,
    index,
    inode,
    sector,
    journal,
    request,
    nfs,
    tar,
    attach_frames,
    walk,
    write,
    repair,
}
