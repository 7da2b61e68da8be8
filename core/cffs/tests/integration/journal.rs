//! Volumes with a journal: the cost of an fsync, the writes that bypass the journal, and that everything that
//! uses a volume takes its contents into account.

use std::io::IoSlice;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{
    BlockDevice, Counts, CrashingDevice, FaultDevice, Image, JournalState, MemoryDevice,
    PairedDevice, TraceDevice,
};
use cffs::error::{Corruption, Error};
use cffs::format::Superblock;
use cffs::format::superblock::State;
use cffs::fsck::{self, CheckOptions, Code, Repair, Report};
use cffs::journal::JournaledDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, JournalMode, NewFile, NewKind, OpenOptions, Volume, read_superblock};

use cffs_testing::setup::FILE;

const ROOT: InodeNo = InodeNo::ROOT;
const MIB: u64 = 1 << 20;

type Device = Arc<TraceDevice<MemoryDevice>>;

fn device(journal_bytes: u64) -> Device {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(256 * MIB)));
    let options = MkfsOptions { journal_bytes, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("made");
    device
}

fn open_with(device: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Volume, Error> {
    cffs::open(device, Arc::new(TestClock::default()), options)
}

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    open_with(device, OpenOptions::default()).expect("opened")
}

fn make(volume: &Volume, name: &str, len: usize) -> InodeNo {
    let ino = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("made").ino;
    assert_eq!(volume.write(&Caller::ROOT, ino, 0, &vec![7; len]).expect("written"), len);
    volume.release(ino, 1);
    ino
}

fn cost<T>(device: &Device, work: impl FnOnce() -> T) -> Counts {
    let before = device.counts();
    work();
    device.counts() - before
}

fn is_there(volume: &Volume, name: &str, len: usize) -> bool {
    let Ok(found) = volume.lookup(ROOT, name.as_bytes()) else { return false };
    let mut bytes = vec![0; len + 1];
    let read = volume.read(found.ino, 0, &mut bytes).expect("read");
    volume.release(found.ino, 1);
    read == len && bytes[..len].iter().all(|byte| *byte == 7)
}

/// The device after the death of the program that had the volume open.
fn as_it_is(device: &Device) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_image(device.inner().snapshot()))
}

fn check(device: &dyn BlockDevice, repair: Repair) -> Report {
    let options = CheckOptions { repair, force: true, contents: true, ..CheckOptions::default() };
    fsck::check(device, &options, &()).expect("checked")
}

fn check_without_journal(device: &dyn BlockDevice, repair: Repair) -> Report {
    let options = CheckOptions { repair, without_journal: true, ..CheckOptions::default() };
    fsck::check(device, &options, &()).expect("checked")
}

fn assert_says_what_is_at_stake(error: &Error, why: &str) {
    let said = error.to_string();
    for part in [why, "reported as durable", "cffs fsck -y --without-journal"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

fn codes(report: &Report) -> Vec<Code> {
    report.problems.iter().map(|problem| problem.code).collect()
}

#[test]
fn an_fsync_is_one_write_and_one_flush() {
    for len in [4096, 200, 30_000] {
        let device = device(4 * MIB);
        let volume = open(device.clone());
        let first = make(&volume, "first", len);
        volume.sync_file(first, false).expect("durable");
        for number in 0..20 {
            let ino = make(&volume, &format!("file {number}"), len);
            let cost = cost(&device, || volume.sync_file(ino, false).expect("durable"));
            assert_eq!((cost.writes, cost.syncs, cost.barriers), (1, 1, 0), "{len}, {number}");
        }
        let journal = volume.stats().journal.expect("it has a journal");
        assert_eq!((journal.state, journal.records), (JournalState::On, 21));
        assert!(journal.superseded_images >= 10, "the directory's block is in each: {journal:?}");
    }
}

#[test]
fn without_a_journal_an_fsync_of_a_new_file_is_two_writes_and_two_flushes() {
    let device = device(0);
    let volume = open(device.clone());
    let first = make(&volume, "first", 4096);
    volume.sync_file(first, false).expect("durable");
    let ino = make(&volume, "file", 4096);
    let cost = cost(&device, || volume.sync_file(ino, false).expect("durable"));
    assert_eq!((cost.writes, cost.syncs + cost.barriers), (2, 2));
    assert_eq!(volume.stats().journal, None);
}

/// A volume with a full journal after a crash is opened without it, and with it again.
#[test]
fn a_journal_that_is_not_wanted_is_made_empty_and_not_written() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    let ino = make(&volume, "journaled", 4096);
    volume.sync_file(ino, false).expect("durable");
    let left = Arc::new(TraceDevice::new(MemoryDevice::from_image(device.inner().snapshot())));
    let volume = open_with(
        left.clone(),
        OpenOptions { journal: JournalMode::Off, ..OpenOptions::default() },
    );
    let volume = volume.expect("opened");
    assert!(is_there(&volume, "journaled", 4096));
    let first = make(&volume, "first", 4096);
    volume.sync_file(first, false).expect("durable");
    let ino = make(&volume, "file", 4096);
    let cost = cost(&left, || volume.sync_file(ino, false).expect("durable"));
    assert_eq!((cost.writes, cost.syncs + cost.barriers), (2, 2));
    let journal = volume.stats().journal.expect("it has a journal");
    assert_eq!((journal.state, journal.records, journal.live_bytes), (JournalState::Off, 0, 0));
    let superblock = read_superblock(&*left).expect("there");
    assert_eq!(superblock.state, State::InUse);
    let (journaled, doubt) = JournaledDevice::open(&*left, &superblock);
    assert_eq!((journaled.live_blocks(), doubt), (0, None));

    let volume = open(as_it_is(&left));
    assert!(["journaled", "first", "file"].iter().all(|name| is_there(&volume, name, 4096)));
    let ino = make(&volume, "again", 4096);
    volume.sync_file(ino, false).expect("durable");
    assert!(
        volume
            .stats()
            .journal
            .is_some_and(|journal| journal.state == JournalState::On && journal.records > 0)
    );
}

#[test]
fn large_epochs_bypass_the_journal() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    let first = make(&volume, "first", 4096);
    volume.sync_file(first, false).expect("durable");
    let bytes = 16 * MIB;
    let ino = make(&volume, "large", bytes as usize);
    let cost = cost(&device, || volume.sync_file(ino, false).expect("durable"));
    assert!(cost.written_bytes < bytes + MIB / 4, "{} bytes", cost.written_bytes);
    let found = open(as_it_is(&device));
    assert!(is_there(&found, "large", bytes as usize));
}

/// Changes made durable by an fsync are only in the journal, and every reader of the volume finds them.
#[test]
fn every_reader_of_the_volume_finds_changes_in_the_journal() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    let ino = make(&volume, "file", 5000);
    volume.sync_file(ino, false).expect("durable");
    let left = as_it_is(&device);
    let image = left.snapshot();
    let superblock = read_superblock(&*left).expect("there");
    assert_eq!(superblock.state, State::InUse);
    let (journaled, doubt) = JournaledDevice::open(&*left, &superblock);
    assert!(doubt.is_none() && journaled.live_blocks() > 0);

    let reader = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = open_with(left.clone(), reader).expect("opened");
    assert!(is_there(&volume, "file", 5000));
    let report = check(&*left, Repair::No);
    assert_eq!((codes(&report), report.inodes), (vec![], 1));
    assert!(same(&left.snapshot(), &image), "a reader leaves the journal as it is");

    let volume = open(left.clone());
    assert!(is_there(&volume, "file", 5000));
    volume.close().expect("closed");
    let superblock = read_superblock(&*left).expect("there");
    assert_eq!(superblock.state, State::Clean);
    let (journaled, _) = JournaledDevice::open(&*left, &superblock);
    assert_eq!(journaled.live_blocks(), 0, "clean means that the journal is empty");
    assert_eq!(codes(&check(&*left, Repair::No)), []);
}

fn same(left: &Image, right: &Image) -> bool {
    let bytes = |image: &Image| {
        let mut bytes = vec![0; image.geometry().size_bytes as usize];
        image.read(0, &mut bytes).expect("read");
        bytes
    };
    bytes(left) == bytes(right)
}

fn damage(device: &MemoryDevice, superblock: &Superblock, block: u64) {
    let at = (superblock.journal.start + block) * u64::from(superblock.block_bytes);
    device.write_at(at + 40, &[IoSlice::new(b"damage")]).expect("written");
}

#[test]
fn a_damaged_journal_of_a_clean_volume_is_rebuilt_and_nothing_is_lost() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    make(&volume, "file", 5000);
    volume.close().expect("closed");
    let left = as_it_is(&device);
    let superblock = read_superblock(&*left).expect("there");
    (0..2).for_each(|block| damage(&left, &superblock, block));
    let error = open_with(left.clone(), OpenOptions::default()).map(drop).expect_err("refused");
    assert!(matches!(error, Error::Corruption(Corruption::JournalHeader { .. })), "{error}");
    assert_eq!(codes(&check(&*left, Repair::No)), [Code::JournalHeader]);
    assert_eq!(check(&*left, Repair::Preen).exit_code(), 1);
    assert_eq!(codes(&check(&*left, Repair::No)), []);
    assert!(is_there(&open(left), "file", 5000));
}

#[test]
fn a_journal_that_is_damaged_in_use_is_not_passed_over() {
    let device = device(4 * MIB);
    let volume = open(device.clone());
    for name in ["one", "two", "three"] {
        let ino = make(&volume, name, 5000);
        volume.sync_file(ino, false).expect("durable");
    }
    let left = as_it_is(&device);
    let superblock = read_superblock(&*left).expect("there");
    // The second record: after two headers and the first record, which has at least two images.
    let second = (5..).find(|block| is_record(&left, &superblock, *block)).expect("there");
    damage(&left, &superblock, second);
    let error = open_with(left.clone(), OpenOptions::default()).map(drop).expect_err("refused");
    assert_says_what_is_at_stake(&error, "others follow it");
    assert_eq!(codes(&check(&*left, Repair::No)), [Code::JournalLost]);
    let before = left.snapshot();
    for repair in [Repair::Preen, Repair::Yes] {
        let options = CheckOptions { repair, ..CheckOptions::default() };
        let error = fsck::check(&*left, &options, &()).expect_err("refused");
        assert_says_what_is_at_stake(&error, "others follow it");
    }
    assert!(same(&left.snapshot(), &before), "a refused change has no effect");
    let crashing = CrashingDevice::new(left.snapshot(), 2, 1);
    check_without_journal(&crashing, Repair::Yes);
    for image in crashing.take_images() {
        // A person repeats an interrupted repair.
        let device = Arc::new(MemoryDevice::from_image(image));
        if read_superblock(&*device).expect("there").state == State::Clean {
            continue;
        }
        let superblock = read_superblock(&*device).expect("there");
        let (_, doubt) = JournaledDevice::open(&*device, &superblock);
        assert!(doubt.is_some() || superblock.damage.is_some(), "it passes for a crash");
        check_without_journal(&*device, Repair::Yes);
        assert_eq!(codes(&check(&*device, Repair::No)), []);
        assert!(is_there(&open(device), "one", 5000));
    }
    assert_eq!(check_without_journal(&*left, Repair::Yes).exit_code(), 1);
    assert_eq!(codes(&check(&*left, Repair::No)), []);
    let volume = open(left);
    assert!(is_there(&volume, "one", 5000), "what comes before the damage is used");
}

fn is_record(device: &MemoryDevice, superblock: &Superblock, block: u64) -> bool {
    let at = (superblock.journal.start + block) * u64::from(superblock.block_bytes);
    let mut magic = [0; 4];
    device.read_at(at, &mut magic).expect("read");
    magic == *b"CFlr"
}

#[test]
fn a_journal_that_the_volume_has_no_room_for_is_refused() {
    for journal_bytes in [4096, 200 * MIB] {
        let device = MemoryDevice::new(256 * MIB);
        let options = MkfsOptions { journal_bytes, ..MkfsOptions::default() };
        let error = mkfs::make(&device, &options).expect_err("refused");
        assert!(error.to_string().contains("a journal of"), "{error}");
    }
}

type Memory = Arc<MemoryDevice>;

/// A volume whose journal is on a separate device.
fn made_external() -> (Memory, Memory) {
    let (home, journal) =
        (Arc::new(MemoryDevice::new(64 * MIB)), Arc::new(MemoryDevice::new(4 * MIB)));
    mkfs::make(&paired(&home, &journal), &MkfsOptions::default()).expect("made");
    (home, journal)
}

fn paired(home: &Memory, journal: &Memory) -> PairedDevice<Memory> {
    PairedDevice::new(Arc::clone(home), Arc::clone(journal) as Arc<dyn BlockDevice>)
}

fn copy(device: &Memory) -> Memory {
    Arc::new(MemoryDevice::from_image(device.snapshot()))
}

/// A volume after a crash, with "journaled" in its journal on another device.
fn crashed_external() -> (Memory, Memory) {
    let (home, journal) = made_external();
    let volume = open(Arc::new(paired(&home, &journal)));
    let ino = make(&volume, "journaled", 4096);
    volume.sync_file(ino, false).expect("durable");
    let left = (copy(&home), copy(&journal));
    assert_eq!(read_superblock(&*left.0).expect("there").state, State::InUse);
    left
}

fn refused(device: Arc<dyn BlockDevice>, options: OpenOptions, word: &str) {
    let error = open_with(device, options).map(drop).expect_err("refused").to_string();
    assert!(error.contains(word) && error.contains("--without-journal"), "{error}");
}

#[test]
fn with_a_journal_on_another_device_an_fsync_is_one_write_and_one_flush_there() {
    let (home, journal) = made_external();
    let home = Arc::new(TraceDevice::new(Arc::try_unwrap(home).expect("alone")));
    let journal = Arc::new(TraceDevice::new(Arc::try_unwrap(journal).expect("alone")));
    let volume = open(Arc::new(PairedDevice::new(home.clone(), journal.clone())));
    let first = make(&volume, "first", 4096);
    volume.sync_file(first, false).expect("durable");
    for number in 0..20 {
        let ino = make(&volume, &format!("file {number}"), 4096);
        let at_home = home.counts();
        let cost = cost(&journal, || volume.sync_file(ino, false).expect("durable"));
        let at_home = home.counts() - at_home;
        assert_eq!((cost.writes, cost.syncs + cost.barriers), (1, 1), "{number}");
        assert_eq!((at_home.writes, at_home.syncs + at_home.barriers), (0, 0), "{number}");
    }
    volume.close().expect("closed");
    assert_eq!(codes(&check(&*as_it_is(&home), Repair::No)), [], "clean without the journal, too");
}

#[test]
fn changes_in_a_journal_on_another_device_are_found() {
    let (home, journal) = crashed_external();
    let reader = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = open_with(Arc::new(paired(&home, &journal)), reader).expect("opened");
    assert!(is_there(&volume, "journaled", 4096));
    let report = check(&paired(&home, &journal), Repair::No);
    assert_eq!((codes(&report), report.inodes), (vec![], 1));
    let volume = open(Arc::new(paired(&home, &journal)));
    assert!(is_there(&volume, "journaled", 4096));
    volume.close().expect("closed");
    assert_eq!(codes(&check(&*home, Repair::No)), []);
}

#[test]
fn a_volume_whose_journal_is_missing_foreign_or_cut_off_is_refused() {
    let (home, journal) = crashed_external();
    let (_, foreign) = crashed_external();
    let none = || OpenOptions { journal: JournalMode::None, ..OpenOptions::default() };
    let reader = || OpenOptions { read_only: true, ..OpenOptions::default() };
    for options in [OpenOptions::default(), none(), reader()] {
        refused(home.clone(), options.clone(), "was not found");
        refused(Arc::new(paired(&home, &foreign)), options.clone(), "of another volume");
        let empty = Arc::new(MemoryDevice::new(4 * MIB));
        refused(Arc::new(paired(&home, &empty)), options.clone(), "has no journal");
        let short = Arc::new(MemoryDevice::new(2 * MIB));
        let mut bytes = vec![0; 2 << 20];
        journal.read_at(0, &mut bytes).expect("read");
        short.write_at(0, &[IoSlice::new(&bytes)]).expect("written");
        refused(Arc::new(paired(&home, &short)), options, "it was cut off");
    }
    let error = fsck::check(&*home, &CheckOptions::default(), &()).expect_err("refused");
    assert!(error.to_string().contains("--without-journal"), "{error}");
    let volume = open(Arc::new(paired(&home, &journal)));
    assert!(is_there(&volume, "journaled", 4096), "nothing of this has touched it");
}

/// Each of two volumes gets the other's journal: neither is opened, and both are unchanged.
#[test]
fn swapped_journals_are_refused_and_nothing_is_lost() {
    let (first, second) = (crashed_external(), crashed_external());
    refused(Arc::new(paired(&first.0, &second.1)), OpenOptions::default(), "of another volume");
    refused(Arc::new(paired(&second.0, &first.1)), OpenOptions::default(), "of another volume");
    for (home, journal) in [first, second] {
        assert!(is_there(&open(Arc::new(paired(&home, &journal))), "journaled", 4096));
    }
}

#[test]
fn a_journal_on_another_device_with_a_torn_header_is_used_and_a_damaged_one_is_not_passed_over() {
    let (home, journal) = crashed_external();
    let spoil = |block: u64| journal.write_at(block * 4096 + 48, &[IoSlice::new(b"damage")]);
    spoil(0).expect("written");
    assert!(is_there(&open(Arc::new(paired(&copy(&home), &copy(&journal)))), "journaled", 4096));
    spoil(1).expect("written");
    let error = open_with(Arc::new(paired(&home, &journal)), OpenOptions::default());
    let error = error.map(drop).expect_err("refused");
    assert_says_what_is_at_stake(&error, "neither of its headers is valid");
    assert_eq!(codes(&check(&paired(&home, &journal), Repair::No)), [Code::JournalLost]);
    assert_eq!(check_without_journal(&paired(&home, &journal), Repair::Yes).exit_code(), 1);
    assert_eq!(codes(&check(&paired(&home, &journal), Repair::No)), []);
    open(Arc::new(paired(&home, &journal))).close().expect("closed");
}

/// The remedy when the journal is lost; if it turns up again, its contents are ignored.
#[test]
fn a_check_without_the_journal_excludes_it_permanently() {
    let (home, journal) = crashed_external();
    assert_eq!(codes(&check_without_journal(&*home, Repair::No)), [Code::JournalLost]);
    assert_eq!(check_without_journal(&*home, Repair::Yes).exit_code(), 1);
    assert_eq!(codes(&check(&*home, Repair::No)), []);
    assert_eq!(codes(&check_without_journal(&*home, Repair::No)), [], "it was reported for ever");
    let (stale, none) =
        (journal, OpenOptions { journal: JournalMode::None, ..OpenOptions::default() });
    let volume = open_with(home.clone(), none).expect("opened");
    assert!(!is_there(&volume, "journaled", 4096));
    let ino = make(&volume, "after", 4096);
    volume.sync_file(ino, false).expect("durable");
    let left = copy(&home);
    // A crash while the journal was missing does not need one either.
    let volume = open(Arc::new(paired(&left, &stale)));
    assert!(is_there(&volume, "after", 4096) && !is_there(&volume, "journaled", 4096));
    let ino = make(&volume, "again", 4096);
    volume.sync_file(ino, false).expect("durable");
    let stats = volume.stats().journal.expect("it has a journal");
    assert_eq!((stats.state, stats.records), (JournalState::On, 1));
    let volume = open(Arc::new(paired(&copy(&left), &copy(&stale))));
    assert!(is_there(&volume, "after", 4096) && is_there(&volume, "again", 4096));
}

#[test]
fn a_journal_device_that_fails_is_given_up_and_nothing_is_lost() {
    for target in [Target::writes(), Target::flushes()] {
        let (home, journal) = made_external();
        let journal = FaultDevice::new(Arc::try_unwrap(journal).expect("alone"), 1);
        let journal = Arc::new(journal);
        let volume = open(Arc::new(PairedDevice::new(home.clone(), journal.clone())));
        let ino = make(&volume, "before", 4096);
        volume.sync_file(ino, false).expect("durable");
        journal.arm(Fault { target, strike: Strike::Always, effect: Effect::IO_ERROR });
        let ino = make(&volume, "after", 4096);
        volume.sync_file(ino, false).expect("durable");
        let stats = volume.stats().journal.expect("it has a journal");
        assert_eq!((stats.state, stats.failures, stats.live_bytes), (JournalState::Off, 1, 0));
        // A crash now: the journal is not needed, and ignored when it is back.
        let left = copy(&home);
        let none = OpenOptions { journal: JournalMode::None, ..OpenOptions::default() };
        let volume = open_with(copy(&left), none).expect("opened");
        assert!(is_there(&volume, "before", 4096) && is_there(&volume, "after", 4096));
        let back = Arc::new(MemoryDevice::from_image(journal.inner().snapshot()));
        let volume = open(Arc::new(paired(&left, &back)));
        assert!(is_there(&volume, "before", 4096) && is_there(&volume, "after", 4096));
    }
}

#[test]
fn a_volume_gets_a_journal_on_another_device_and_loses_it() {
    let home = Arc::new(MemoryDevice::new(64 * MIB));
    mkfs::make(&*home, &MkfsOptions::default()).expect("made");
    let before = home.snapshot();
    let journal = Arc::new(MemoryDevice::new(4 * MIB));
    let superblock = mkfs::set_journal(&paired(&home, &journal), Some(0)).expect("given");
    assert_eq!(superblock.journal.blocks, 1024);
    let volume = open(Arc::new(paired(&home, &journal)));
    let ino = make(&volume, "file", 4096);
    volume.sync_file(ino, false).expect("durable");
    assert_eq!(volume.stats().journal.expect("it has a journal").records, 1);
    let error = mkfs::set_journal(&*home, None).expect_err("refused");
    assert!(error.to_string().contains("not left clean"), "{error}");
    volume.close().expect("closed");
    mkfs::set_journal(&*home, None).expect("taken");
    let volume = open(home.clone());
    assert!(is_there(&volume, "file", 4096) && volume.stats().journal.is_none());
    let tiny = Arc::new(MemoryDevice::new(4096));
    let home = Arc::new(MemoryDevice::from_image(before));
    let error = mkfs::set_journal(&paired(&home, &tiny), Some(0)).expect_err("refused");
    assert!(error.to_string().contains("a journal of"), "{error}");
}

#[test]
fn a_volume_with_a_journal_grows_and_journals_blocks_of_the_new_part() {
    let small = MkfsOptions { journal_bytes: 4 * MIB, cg_blocks: 4096, ..MkfsOptions::default() };
    let made = MemoryDevice::new(64 * MIB);
    mkfs::make(&made, &small).expect("made");
    let mut bytes = vec![0; 64 << 20];
    made.read_at(0, &mut bytes).expect("read");
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(256 * MIB)));
    device.write_at(0, &[IoSlice::new(&bytes)]).expect("written");
    let volume = open(device.clone());
    let filler = make(&volume, "filler", 40 << 20);
    volume.sync_file(filler, false).expect("durable");
    assert_eq!(volume.admin().grow(None).expect("grown"), 256 * MIB);
    // More than fits into the old part.
    let filler = make(&volume, "more", 40 << 20);
    volume.sync().expect("durable");
    let old_fragments = 64 * MIB / 1024;
    let placed = volume.admin().explain(filler).expect("placed");
    assert!(placed.pieces.iter().any(|piece| piece.run.start.0 > old_fragments), "{placed:?}");
    let dir = NewFile { kind: NewKind::Directory, permissions: 0o755, ..FILE };
    let dirs: Vec<InodeNo> = (0..8)
        .map(|at| {
            volume
                .make(&Caller::ROOT, ROOT, format!("dir {at}").as_bytes(), &dir)
                .expect("made")
                .ino
        })
        .collect();
    volume.sync().expect("durable");
    let mut is_beyond = false;
    for at in 0..40 {
        let ino = volume
            .make(&Caller::ROOT, dirs[at % 8], format!("{at}").as_bytes(), &FILE)
            .expect("made")
            .ino;
        volume.write(&Caller::ROOT, ino, 0, &[7; 4096]).expect("written");
        let records = volume.stats().journal.expect("it has a journal").records;
        volume.sync_file(ino, false).expect("durable");
        assert_eq!(volume.stats().journal.expect("it has a journal").records, records + 1, "{at}");
        let placed = volume.admin().explain(ino).expect("placed");
        is_beyond |= placed.pieces.iter().any(|piece| piece.run.start.0 > old_fragments);
    }
    assert!(is_beyond, "nothing was placed in the new part");
    let left = as_it_is(&device);
    let volume = open(left.clone());
    for at in 0..40 {
        let dir = volume.lookup(ROOT, format!("dir {}", at % 8).as_bytes()).expect("there").ino;
        assert!(volume.lookup(dir, format!("{at}").as_bytes()).is_ok(), "{at}");
    }
    volume.close().expect("closed");
    assert_eq!(codes(&check(&*left, Repair::No)), []);
}

/// Each file that fitted survives a crash, without other damage.
#[test]
fn a_volume_with_a_journal_that_is_full_keeps_what_was_durable() {
    let device = Arc::new(TraceDevice::new(MemoryDevice::new(8 * MIB)));
    let options = MkfsOptions { journal_bytes: MIB / 2, cg_blocks: 512, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("made");
    let volume = open(device.clone());
    let mut durable = 0;
    loop {
        let name = format!("{durable}");
        let Ok(file) = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE) else { break };
        let written = volume.write(&Caller::ROOT, file.ino, 0, &[7; 50_000]);
        if !written.is_ok_and(|len| len == 50_000) || volume.sync_file(file.ino, false).is_err() {
            break;
        }
        durable += 1;
    }
    assert!(durable > 50 && volume.writer().health.latched().is_none(), "{durable}");
    let journal = volume.stats().journal.expect("it has a journal");
    // A checkpoint may empty the journal first, so the records do not always find it full.
    assert!(journal.drains > 3 && journal.state == JournalState::On, "{journal:?}");
    let left = as_it_is(&device);
    let volume = open(left.clone());
    assert!((0..durable).all(|at| is_there(&volume, &at.to_string(), 50_000)));
    volume.close().expect("closed");
    assert_eq!(codes(&check(&*left, Repair::No)), []);
}
