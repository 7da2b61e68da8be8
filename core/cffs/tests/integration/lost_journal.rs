//! A journal and a volume from different times, as from a backup or a stale half of a mirror: they are
//! refused, and changed only with the explicit option to continue.

use std::cell::Cell;
use std::io::IoSlice;
use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::{BlockDevice, JournalState, MemoryDevice, PairedDevice};
use cffs::error::{Error, Result};
use cffs::format::Superblock;
use cffs::format::journal::Header;
use cffs::format::superblock::State;
use cffs::fsck::{self, CheckOptions, Code, Repair, Report};
use cffs::journal;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, OpenOptions, Volume, read_superblock};

use cffs_testing::setup::FILE;

const ROOT: InodeNo = InodeNo::ROOT;
/// The journal is so small that a dozen files fill it.
const JOURNAL_BYTES: u64 = 32 * 4096;

type Memory = Arc<MemoryDevice>;

/// A volume, and the device of its journal.
#[derive(Clone)]
struct Disks {
    home: Memory,
    journal: Memory,
}

impl Disks {
    fn made() -> Disks {
        let home = Arc::new(MemoryDevice::new(16 << 20));
        let disks = Disks { home, journal: Arc::new(MemoryDevice::new(JOURNAL_BYTES)) };
        mkfs::make(&*disks.joined(), &MkfsOptions::default()).expect("made");
        disks
    }

    fn joined(&self) -> Arc<dyn BlockDevice> {
        Arc::new(PairedDevice::new(self.home.clone(), self.journal.clone() as Arc<dyn BlockDevice>))
    }

    /// A copy whose nonces begin with this one.
    fn with_nonces(&self, first: u64) -> Disks {
        let home = MemoryDevice::from_image(self.home.snapshot()).with_nonces(first);
        Disks { home: Arc::new(home), journal: copy(&self.journal) }
    }

    /// A copy as after a power cut.
    fn copied(&self) -> Disks {
        Disks { home: copy(&self.home), journal: copy(&self.journal) }
    }

    fn bytes(&self) -> [Vec<u8>; 2] {
        [bytes_of(&self.home), bytes_of(&self.journal)]
    }
}

fn copy(device: &Memory) -> Memory {
    Arc::new(MemoryDevice::from_image(device.snapshot()))
}

fn bytes_of(device: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().size_bytes as usize];
    device.read_at(0, &mut bytes).expect("read");
    bytes
}

fn open(device: Arc<dyn BlockDevice>) -> Result<Volume> {
    cffs::open(device, Arc::new(TestClock::default()), OpenOptions::default())
}

/// Creates durable files, enough that the journal is emptied in between.
fn put(volume: &Volume, name: &str) {
    let drains = || volume.stats().journal.expect("it has a journal").drains;
    let before = drains();
    for number in 0..60 {
        let name = format!("{name} {number}");
        let ino = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("made").ino;
        volume.write(&Caller::ROOT, ino, 0, &[7; 4096]).expect("written");
        volume.sync_file(ino, false).expect("durable");
        volume.release(ino, 1);
    }
    assert!(drains() > before + 1, "the journal was never full");
}

fn assert_has(volume: &Volume, name: &str) {
    for number in 0..60 {
        let found = volume.lookup(ROOT, format!("{name} {number}").as_bytes());
        volume.release(found.expect("it was durable").ino, 1);
    }
}

fn check(device: &dyn BlockDevice, repair: Repair, without_journal: bool) -> Result<Report> {
    let options = CheckOptions { repair, without_journal, force: true, ..CheckOptions::default() };
    fsck::check(device, &options, &())
}

fn codes(report: &Report) -> Vec<Code> {
    report.problems.iter().map(|problem| problem.code).collect()
}

fn assert_says(error: &Error, why: &str) {
    let said = error.to_string();
    for part in [why, "reported as durable", "cffs fsck -y --without-journal"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// No operation opens, repairs or changes the volume unless this is requested.
fn assert_refused(disks: &Disks, why: &str) {
    let before = disks.bytes();
    assert_says(&open(disks.joined()).map(drop).expect_err("refused"), why);
    let reader = OpenOptions { read_only: true, ..OpenOptions::default() };
    let opened = cffs::open(disks.joined(), Arc::new(TestClock::default()), reader);
    assert_says(&opened.map(drop).expect_err("refused"), why);
    for repair in [Repair::Preen, Repair::Yes] {
        assert_says(&check(&*disks.joined(), repair, false).expect_err("refused"), why);
    }
    let report = check(&*disks.joined(), Repair::No, false).expect("checked");
    assert_eq!(report.problems[0].code, Code::JournalLost);
    assert!(report.problems[0].message.contains(why), "{:?}", report.problems[0]);
    assert!(disks.bytes() == before, "a refused change has no effect");
}

/// The explicit option turns the remains into a sound volume, which no longer reports the problem afterwards.
fn assert_goes_on(disks: &Disks) {
    let report = check(&*disks.joined(), Repair::Yes, true).expect("checked");
    assert_eq!((report.problems[0].code, report.exit_code()), (Code::JournalLost, 1));
    for without_journal in [false, true] {
        let report = check(&*disks.joined(), Repair::No, without_journal).expect("checked");
        assert_eq!(codes(&report), [], "with --without-journal: {without_journal}");
    }
    let volume = open(disks.joined()).expect("opened");
    put(&volume, "after");
    let crashed = open(disks.copied().joined()).expect("opened");
    assert_has(&crashed, "after");
}

/// Regression: a stale half of a mirror was accepted as the journal: changes that fsync had reported as
/// durable were lost, and old images were written over newer blocks.
#[test]
fn an_older_copy_of_the_journal_is_refused() {
    let disks = Disks::made();
    let volume = open(disks.joined()).expect("opened");
    put(&volume, "one");
    let old = copy(&disks.journal);
    put(&volume, "two");
    let Disks { home, journal } = disks.copied();
    let mixed = Disks { home: home.clone(), journal: old };
    assert_refused(&mixed, "an older copy of the volume's journal");
    // The attempt has lost nothing.
    let volume = open(Disks { home: copy(&home), journal }.joined()).expect("opened");
    ["one", "two"].iter().for_each(|name| assert_has(&volume, name));
    assert_goes_on(&mixed);
}

/// Regression: such a copy was even written over a volume that had been closed and used again since.
#[test]
fn a_copy_of_the_journal_from_before_a_clean_close_is_refused() {
    let disks = Disks::made();
    let volume = open(disks.joined()).expect("opened");
    put(&volume, "one");
    let old = copy(&disks.journal);
    volume.close().expect("closed");
    let volume = open(disks.joined()).expect("opened");
    put(&volume, "two");
    let mixed = Disks { home: copy(&disks.home), journal: old };
    assert_refused(&mixed, "an older copy of the volume's journal");
    assert_goes_on(&mixed);
}

#[test]
fn an_older_copy_of_the_volume_is_refused() {
    let disks = Disks::made();
    let volume = open(disks.joined()).expect("opened");
    put(&volume, "one");
    let old = copy(&disks.home);
    put(&volume, "two");
    let mixed = Disks { home: old, journal: copy(&disks.journal) };
    assert_refused(&mixed, "an older copy of itself");
    assert_goes_on(&mixed);
}

/// For an internal journal, only a device that lost or restored writes can have an older one.
#[test]
fn an_older_journal_on_the_volume_itself_is_refused() {
    let home = Arc::new(MemoryDevice::new(16 << 20));
    let options = MkfsOptions { journal_bytes: JOURNAL_BYTES, ..MkfsOptions::default() };
    let superblock = mkfs::make(&*home, &options).expect("made");
    let area = journal::area_bytes(&superblock);
    let volume = open(home.clone()).expect("opened");
    put(&volume, "one");
    let mut old = vec![0; (area.end - area.start) as usize];
    home.read_at(area.start, &mut old).expect("read");
    put(&volume, "two");
    let left = copy(&home);
    left.write_at(area.start, &[IoSlice::new(&old)]).expect("written");
    let error = open(left.clone()).map(drop).expect_err("refused");
    assert_says(&error, "an older copy of the volume's journal");
    assert_eq!(check(&*left, Repair::Yes, true).expect("checked").exit_code(), 1);
    assert_eq!(codes(&check(&*left, Repair::No, false).expect("checked")), []);
    put(&open(left).expect("opened"), "after");
}

/// The journal was empty when the volume was closed, so any copy can be used; later records belong to an era
/// that no copy has.
#[test]
fn a_volume_that_was_closed_is_opened_with_an_older_copy_of_its_journal() {
    let disks = Disks::made();
    let volume = open(disks.joined()).expect("opened");
    put(&volume, "one");
    let old = copy(&disks.journal);
    put(&volume, "two");
    volume.close().expect("closed");
    let mixed = Disks { home: copy(&disks.home), journal: old };
    let volume = open(mixed.joined()).expect("opened");
    // After a crash before anything is journaled, the journal and the volume belong together.
    open(mixed.copied().joined()).expect("opened").close().expect("closed");
    put(&volume, "three");
    assert_eq!(volume.stats().journal.expect("it has a journal").state, JournalState::On);
    let left = mixed.copied();
    let newer = Disks { home: copy(&left.home), journal: copy(&disks.journal) };
    assert_refused(&newer, "an older copy of the volume's journal");
    let volume = open(left.joined()).expect("opened");
    ["one", "two", "three"].iter().for_each(|name| assert_has(&volume, name));
}

/// Both have the same UUID, and headers with the same number.
#[test]
fn the_journal_of_a_copy_that_was_used_as_well_is_refused() {
    let put_one = |disks: &Disks, name: &str| {
        let volume = open(disks.joined()).expect("opened");
        let ino = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("made").ino;
        volume.sync_file(ino, false).expect("durable");
        volume.release(ino, 1);
        volume
    };
    let disks = Disks::made();
    for used_before in ["never", "once", "twice"] {
        let left = [(1 << 32, "here"), (2 << 32, "there")].map(|(nonce, name)| {
            let disks = disks.with_nonces(nonce);
            let _volume = put_one(&disks, name);
            disks.copied()
        });
        let [own, other] = &left;
        let mixed = Disks { home: own.home.clone(), journal: other.journal.clone() };
        assert_refused(&mixed, "another copy of this volume");
        let volume = open(own.joined()).expect("its own journal");
        volume.lookup(ROOT, b"here").expect("it was durable");
        put_one(&disks, used_before).close().expect("closed");
    }
}

/// Regression: the volume was marked as this program's, and so written, before the check was found to be
/// impossible.
#[test]
fn a_check_that_is_refused_does_not_claim_the_volume() {
    let disks = Disks::made();
    let volume = open(disks.joined()).expect("opened");
    put(&volume, "one");
    let left = disks.copied();
    let claims = Cell::new(0);
    let claim = |_: &Superblock| {
        claims.set(claims.get() + 1);
        Ok(())
    };
    let options = CheckOptions { repair: Repair::Preen, ..CheckOptions::default() };
    let check = |device: &dyn BlockDevice| fsck::check_claimed(device, &options, &(), &claim);
    check(&*left.home).expect_err("the journal is missing");
    let other = Disks::made();
    check(&*Disks { home: left.home.clone(), journal: other.journal }.joined())
        .expect_err("foreign");
    assert_eq!(claims.get(), 0);
    assert_eq!(check(&*left.joined()).expect("checked").exit_code(), 0);
    assert_eq!(claims.get(), 1);
}

/// Each durable header is recorded before the next one is written.
#[test]
fn the_superblock_knows_the_header_of_the_journal() {
    let disks = Disks::made();
    let volume = open(disks.joined()).expect("opened");
    put(&volume, "one");
    for name in ["two", "three"] {
        let superblock = read_superblock(&*disks.home).expect("there");
        assert_eq!(superblock.state, State::InUse);
        let mut block = vec![0; superblock.block_bytes as usize];
        disks.journal.read_at(0, &mut block).expect("read");
        let header = Header::decode(&block, superblock.checksum()).expect("a header");
        assert_eq!(header.sequence, superblock.journal.sequence);
        put(&volume, name);
    }
}
