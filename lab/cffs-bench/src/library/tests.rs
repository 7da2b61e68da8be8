//! Exact runs: repeatable, complete, and with the expected effects of the techniques.

use super::trees::Tree;
use super::*;
use crate::disk::Nanos;

mod made_durable;
mod regrouping;

fn plan(files: u64) -> LibraryPlan {
    LibraryPlan {
        profile: Profile::St31200,
        stroke: Stroke::Whole,
        size: 128 << 20,
        files,
        large_bytes: 8 << 20,
        journal_bytes: 0,
        each_durable: false,
        seed: 1,
    }
}

fn requests(phases: &[Phase], name: &str) -> u64 {
    let phase = phases.iter().find(|p| p.name == name).unwrap();
    phase.device.unwrap().requests()
}

#[test]
fn repeated_runs_give_the_same_figures() {
    let once = plan(300).small_file(Peer::Cffs, 300, 1024).unwrap();
    let twice = plan(300).small_file(Peer::Cffs, 300, 1024).unwrap();
    assert_eq!(once, twice);
    assert!(once.iter().all(|p| p.files == 300));
}

#[test]
fn co_location_saves_as_many_requests_as_the_papers_report() {
    let ours = plan(2000).small_file(Peer::Cffs, 2000, 1024).unwrap();
    let plain = plan(2000).small_file(Peer::CffsPlain, 2000, 1024).unwrap();
    // USENIX'97 4.2.
    for (name, times) in [("create", 20), ("read", 10), ("read shuffled", 10), ("overwrite", 10)] {
        let (few, many) = (requests(&ours, name), requests(&plain, name));
        assert!(few * times <= many, "{name}: {few} requests, and {many} without");
    }
}

#[test]
fn hot_operations_run_on_the_library() {
    let phases = hot(Hot { operations: 100, clients: 1, pinned: false, seed: 1 }).unwrap();
    assert!(phases.iter().all(|p| p.files == 100 && p.seconds > 0.0));
    assert_eq!(phases[2].bytes, 100 * 1024);
    let counted = |p: &Phase| p.instructions.is_some_and(|n| n > 100_000);
    let obstacle = Instructions::start().obstacle().is_some();
    assert!(phases.iter().all(|p| counted(p) != obstacle), "{phases:?}");
}

#[test]
fn a_large_file_moves_all_its_bytes() {
    let phases = plan(1).large_file(Peer::Cffs).unwrap();
    let device = |i: usize| phases[i].device.unwrap();
    assert!(device(0).write_bytes >= 8 << 20);
    assert!(device(1).read_bytes >= 8 << 20);
    assert!(device(2).write_bytes >= 8 << 20);
}

/// Requests of each walk over a small tree: find, du, scan.
fn walks(tree: Tree, size: u64, directories: u64) -> Vec<f64> {
    let plan = LibraryPlan { profile: Profile::Hdd7200, size, ..plan(1) };
    let phases = trees::walks(&plan, Peer::Cffs, tree, directories, 0).unwrap();
    phases.iter().map(|p| p.device.unwrap().requests() as f64 / p.files as f64).collect()
}

#[test]
fn churn_does_not_scatter_a_directory() {
    let tree = Tree::Aged { full: 0.8, operations: 5_000 };
    let requests = walks(tree, 256 << 20, 20);
    assert!(requests[0] < 0.02, "find: {requests:?}");
    assert!(requests[1] < 0.02, "du: {requests:?}");
    assert!(requests[2] < 0.03, "scan: {requests:?}");
}

#[test]
fn a_fresh_tree_is_read_in_sweeps() {
    let requests = walks(Tree::Fresh { files: 2_000 }, 256 << 20, 20);
    assert!(requests[0] < 0.005, "find: {requests:?}");
    assert!(requests[2] < 0.04, "scan: {requests:?}");
}

/// As on a mount, prefetched requests are as long as the disk accepts.
#[test]
fn a_fresh_tree_is_prefetched_in_long_requests() {
    let tree = Tree::Fresh { files: 8_000 };
    let plan = LibraryPlan { profile: Profile::Hdd7200, size: 1 << 30, ..plan(1) };
    let phases = trees::walks(&plan, Peer::Cffs, tree, 80, 2).unwrap();
    let requests = phases[2].device.unwrap().requests();
    assert!(requests * 50 <= 8_000, "{requests} requests");
}

/// Names of an aged tree are stored densely: find(1) reads little more than their size, and does not read the
/// first few directories one by one.
#[test]
fn names_of_an_aged_tree_take_few_bytes() {
    let plan = LibraryPlan { profile: Profile::Hdd7200, size: 512 << 20, ..plan(1) };
    let tree = Tree::Aged { full: 0.8, operations: 5_000 };
    let phases = trees::walks(&plan, Peer::Cffs, tree, 200, 0).unwrap();
    let (find, files) = (phases[0].device.unwrap(), phases[0].files);
    assert!(find.read_bytes < files * 700, "{} bytes for {files} files", find.read_bytes);
    assert!(find.requests() <= 4, "{find:?}");
}

/// Prints the figures of decision 004.
#[test]
#[ignore = "a minute with --release"]
fn names_are_walked_in_few_seeks() {
    const MIB: u64 = 1 << 20;
    let aged = |operations| Tree::Aged { full: 0.8, operations };
    let fresh = Tree::Fresh { files: 20_000 };
    for (tree, size, directories, most) in [
        (aged(15_000), 512 * MIB, 200, 0.3),
        (aged(60_000), 2048 * MIB, 200, 1.0),
        (aged(120_000), 4096 * MIB, 200, 1.0),
        (fresh, 2048 * MIB, 200, 0.1),
        (fresh, 2048 * MIB, 2000, 0.1),
    ] {
        let plan = LibraryPlan { profile: Profile::Hdd7200, size, ..plan(1) };
        let phases = trees::walks(&plan, Peer::Cffs, tree, directories, 0).unwrap();
        for phase in &phases {
            let device = phase.device.unwrap();
            let (requests, seeks, read) =
                (device.requests(), device.seeks, device.read_bytes / MIB);
            let (name, files, seconds) = (&phase.name, phase.files, phase.seconds);
            println!(
                "{tree:?} in {directories}: {name} {files} files, {requests} requests, \
                 {seeks} seeks, {read} MiB, {seconds:.3} s"
            );
        }
        assert!(phases[0].seconds < most, "{phases:?}");
        if let Tree::Fresh { files } = tree {
            assert!(phases[2].device.unwrap().requests() * 50 <= files, "{phases:?}");
        }
    }
}

#[test]
fn files_made_durable_together_go_to_one_place() {
    let plan = LibraryPlan { profile: Profile::Hdd7200, size: 2 << 30, ..plan(1) };
    let together = durable::measure(&plan, Peer::Cffs, 400, 4096, 8).unwrap().device.unwrap();
    // For eight files: the contents in one request, the eight directories, and sometimes a directory's next
    // sectors; a flush between contents and names, and one after them.
    assert!(together.writes <= 50 * 11, "{together:?}");
    assert!(together.flushes <= 50 * 2 + 1, "{together:?}");
    assert!(together.busy_ns <= 400 * 2_000_000, "{together:?}");
    let alone = durable::measure(&plan, Peer::Cffs, 50, 4096, 1).unwrap().device.unwrap();
    assert!(together.busy_ns < alone.busy_ns * 3 / 2, "{together:?} for eight at once, {alone:?}");
    let tiny = durable::measure(&plan, Peer::Cffs, 50, 200, 1).unwrap().device.unwrap();
    // A file that fits into its sector takes one request, and one rotation of the disk.
    assert!(tiny.writes <= 60 && tiny.busy_ns <= 50 * 9_000_000, "{tiny:?}");
}

/// Prints the counters of the device while files are read in order; returns them, and the share of its time
/// for transferring contents.
fn read_in_order(profile: Profile, volume: u64, (files, size): (u64, usize)) -> (Phase, f64) {
    let plan = LibraryPlan { profile, size: volume, large_bytes: size as u64, ..plan(1) };
    let phases = match files {
        1 => plan.large_file(Peer::Cffs).unwrap(),
        _ => plan.small_file(Peer::Cffs, files, size).unwrap(),
    };
    let phase = phases.into_iter().find(|p| p.name == "read").unwrap();
    let device = phase.device.unwrap();
    let of_streaming = phase.bytes as f64 / phase.seconds / profile.streaming_rate().unwrap();
    let ms = |ns: u64| ns as f64 / 1e6;
    println!(
        "{profile:?}, {files} files of {size} bytes: {:.1} ms, {:.1} % of streaming, {} requests, \
         {:.1} % more bytes, seeks {:.1} ms, rotation {:.1} ms",
        phase.seconds * 1e3,
        of_streaming * 100.0,
        device.requests(),
        (device.read_bytes as f64 / phase.bytes as f64 - 1.0) * 100.0,
        ms(device.seek_ns),
        ms(device.rotation_ns),
    );
    (phase, of_streaming)
}

#[test]
fn files_in_order_take_few_seeks_and_nothing_that_was_never_written() {
    let (phase, of_streaming) = read_in_order(Profile::Hdd7200, 512 << 20, (3_000, 4096));
    let device = phase.device.unwrap();
    assert!(device.seeks <= 4, "{device:?}");
    assert!(device.read_bytes < phase.bytes * 109 / 100, "{device:?}");
    assert!(of_streaming > 0.7, "{of_streaming}");
}

#[test]
#[ignore = "half a minute with --release"]
fn cold_reads_come_near_to_what_the_device_streams() {
    const GIB: u64 = 1 << 30;
    let least = |profile, volume, what, least: f64| {
        let (phase, of_streaming) = read_in_order(profile, volume, what);
        assert!(of_streaming > least, "{phase:?}");
    };
    least(Profile::Hdd7200, 2 * GIB, (10_000, 16_384), 0.92);
    least(Profile::Hdd7200, 2 * GIB, (10_000, 4096), 0.83);
    least(Profile::Hdd7200, 2 * GIB, (1, 512 << 20), 0.99);
    least(Profile::AtlasIi, GIB / 2, (1_000, 4096), 0.90);
    least(Profile::AtlasIi, GIB / 2, (1, 64 << 20), 0.99);
}

/// The disk's seconds per file that is made durable, without a journal and with one.
fn durable_seconds(profile: Profile, files: u64, size: usize, directories: u64) -> [f64; 2] {
    [0, 32 << 20].map(|journal_bytes| {
        let plan = LibraryPlan { profile, size: 2 << 30, journal_bytes, ..plan(1) };
        let phase = durable::measure(&plan, Peer::Cffs, files, size, directories).unwrap();
        phase.seconds / files as f64
    })
}

/// Runs on both kinds of drive. Decision 008 has the figures that this prints.
#[test]
fn a_journal_makes_files_durable_in_a_part_of_a_turn_of_the_disk() {
    for profile in [Profile::Hdd7200, Profile::Hdd7200WriteThrough] {
        // A tiny file fits into its directory's sector, and takes one request and one flush without a
        // journal.
        for (files, size, directories, gain) in
            [(100, 4096, 1, 15.0), (100, 200, 1, 8.0), (400, 4096, 8, 5.0)]
        {
            let [without, with] = durable_seconds(profile, files, size, directories);
            let rates = [1.0 / without, 1.0 / with];
            println!("{profile:?}, {size} B, {directories} at once: {rates:.0?} files/s");
            assert!(without / with > gain, "{profile:?}, {size} B, {directories}: {rates:.1?}");
        }
    }
}

/// A stream bypasses the journal, except for a record of its last epoch, which is at another place.
#[test]
fn a_journal_costs_a_stream_a_turn_of_the_disk() {
    for profile in [Profile::Hdd7200, Profile::Hdd7200WriteThrough] {
        let seconds = [0, 32 << 20].map(|journal_bytes| {
            let plan = LibraryPlan {
                profile,
                size: 1 << 30,
                large_bytes: 192 << 20,
                journal_bytes,
                ..plan(1)
            };
            plan.large_file(Peer::Cffs).unwrap()[0].seconds
        });
        println!("{profile:?}, 192 MiB: {seconds:.3?} s");
        assert!(seconds[1] <= 0.01 + seconds[0], "{profile:?}: {seconds:?}");
    }
}

/// Measures the disk's time for an opening after a crash, with a nearly full journal of the default size.
#[test]
fn recovery_from_a_full_journal_takes_less_than_a_second() {
    for profile in [Profile::Hdd7200, Profile::Hdd7200WriteThrough] {
        let plan = LibraryPlan { profile, size: 4 << 30, journal_bytes: 60 << 20, ..plan(1) };
        let disk = plan.disk(Peer::Cffs).unwrap();
        let open =
            || cffs::open(disk.clone(), Arc::new(TestClock::default()), OpenOptions::default());
        let volume = open().unwrap();
        let live_bytes = || volume.stats().journal.unwrap().live_bytes;
        let dirs: Vec<InodeNo> = (0..16)
            .map(|i| make(&volume, InodeNo::ROOT, &format!("d{i}"), NewKind::Directory).unwrap())
            .collect();
        let mut files = 0;
        while live_bytes() < 30 << 20 {
            let i = files;
            files += 1;
            assert!(files < 1000, "the journal does not fill");
            let file = make(&volume, dirs[i % 16], &format!("f{i}"), NewKind::Regular).unwrap();
            volume.write(&Caller::ROOT, file, 0, &[7; 60_000]).unwrap();
            volume.sync_file(file, false).unwrap();
        }
        // The program ends here. The disk keeps its contents.
        disk.power_cycle();
        let (before, started) = (disk.counters(), disk.now());
        let recovered = open().unwrap();
        let seconds = disk.now().since(started).as_secs();
        let cost = disk.counters().since(&before);
        println!("{profile:?}: {seconds:.3} s, {} requests", cost.requests());
        let last = files - 1;
        assert!(recovered.lookup(dirs[last % 16], format!("f{last}").as_bytes()).is_ok());
        assert!(seconds <= 1.0, "{profile:?}: {seconds:.3} s, {cost:?}");
    }
}

/// Makes files of 4 KiB durable, one in each directory at a time, with pauses of `host` between them, while
/// the journal is drained repeatedly. Returns the drains' share of the busy time, and the bytes written per
/// file.
fn destaging(profile: Profile, journal_bytes: u64, directories: usize, host: Nanos) -> (f64, f64) {
    const FILES: usize = 12_000;
    let plan = LibraryPlan { profile, size: 2 << 30, journal_bytes, ..plan(1) };
    let disk = plan.disk(Peer::Cffs).unwrap();
    let clock = Arc::new(TestClock::default());
    let volume = cffs::open(disk.clone(), clock, OpenOptions::default()).unwrap();
    let dirs: Vec<InodeNo> = (0..directories)
        .map(|i| make(&volume, InodeNo::ROOT, &format!("d{i}"), NewKind::Directory).unwrap())
        .collect();
    let durable = |i: usize| {
        let files: Vec<InodeNo> = dirs
            .iter()
            .map(|dir| {
                let file = make(&volume, *dir, &format!("f{i}"), NewKind::Regular).unwrap();
                volume.write(&Caller::ROOT, file, 0, &[7; 4096]).unwrap();
                file
            })
            .collect();
        for file in files {
            volume.sync_file(file, false).unwrap();
            volume.release(file, 1);
        }
        disk.idle(host);
    };
    // The first records try out gaps.
    (0..100).for_each(durable);
    let journal = || volume.stats().journal.unwrap_or_default();
    let (before, started, journal_before) = (disk.counters(), disk.now(), journal());
    let rounds = FILES / directories;
    (100..100 + rounds).for_each(durable);
    let busy = disk.now().since(started).as_secs() - host.as_secs() * rounds as f64;
    let bytes = disk.counters().since(&before).write_bytes as f64 / FILES as f64;
    let home = (journal().drain_time - journal_before.drain_time).as_secs_f64();
    let drains = (journal().drains - journal_before.drains).max(1);
    println!(
        "  {drains} drains of {:.1} ms and {:.1} MiB, {:.0} records for each, {:.2} ms for a record",
        home * 1e3 / drains as f64,
        (journal().drained_bytes - journal_before.drained_bytes) as f64 / drains as f64 / 1048576.0,
        rounds as f64 / drains as f64,
        (busy - home) * 1e3 / rounds as f64,
    );
    (home / busy, bytes)
}

/// Prints figures of decision 008.
#[test]
fn destaging_takes_a_small_part_of_the_disks_time() {
    for profile in [Profile::Hdd7200, Profile::Hdd7200WriteThrough] {
        for (directories, host_us, most) in
            [(1, 0, 0.2), (1, 500, 0.1), (8, 0, 0.3), (8, 1_000, 0.2)]
        {
            let host = Nanos::from_ms(f64::from(host_us) / 1e3);
            let (_, without) = destaging(profile, 0, directories, host);
            let (share, bytes) = destaging(profile, 60 << 20, directories, host);
            let times = bytes / without;
            println!(
                "{profile:?}, {directories} at once, {host_us} µs between: {:.1} % of the time, \
                 {times:.2} x the bytes",
                share * 100.0
            );
            assert!(share > 0.0, "the journal was never full");
            assert!(share <= most && times <= 2.2, "{profile:?}: {share}, {times}");
        }
    }
}

/// Prints the figures of decision 007.
#[test]
#[ignore = "a minute with --release"]
fn epochs_of_large_sets_are_swept() {
    const MIB: u64 = 1 << 20;
    for (files, size, cache_bytes, batch, least) in [
        (65_536, 4 << 10, 32 * MIB, 256, 200.0),
        (65_536, 4 << 10, 32 * MIB, 4096, 2_000.0),
        (2_621, 100 << 10, 32 * MIB, 163, 200.0),
        (20_000, 4 << 10, 256 * MIB, 256, 20_000.0),
        (4_000, 100 << 10, 256 * MIB, 256, 200.0),
        (10_000, 4 << 10, 1024 * MIB, 256, 30_000.0),
        (20_000, 4 << 10, 1024 * MIB, 32, 20_000.0),
        (2_000, 100 << 10, 256 * MIB, 256, 1_000.0),
        (4_000, 100 << 10, 1024 * MIB, 256, 1_000.0),
        (8_000, 100 << 10, 1024 * MIB, 256, 100.0),
        (4_000, 100 << 10, 1024 * MIB, 32, 100.0),
    ] {
        let plan = LibraryPlan { profile: Profile::Hdd7200, size: 1024 * MIB, ..plan(1) };
        let set = epoch::Epoch { files, size, cache_bytes, batch };
        let phase = epoch::measure(&plan, Peer::Cffs, set).unwrap();
        let (device, rate) = (phase.device.unwrap(), files as f64 / phase.seconds);
        println!(
            "{set:?}: {rate:.0} files/s, {} requests, {} seeks, {:.1} times the bytes",
            device.requests(),
            device.seeks,
            device.read_bytes as f64 / phase.bytes as f64
        );
        assert!(rate > least, "{set:?}: {rate} files/s");
    }
}
