//! Changing properties of a volume: with a crash at every barrier, and on a failing device.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{BlockDevice, CrashingDevice, FaultDevice, Image, MemoryDevice};
use cffs::error::Error;
use cffs::format::superblock::{Compression, ErrorsPolicy, Policy, Reserve};
use cffs::format::{Layout, Superblock};
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::{InodeNo, Key};
use cffs::vfs::{Caller, OpenOptions, SetVolume, Volume, read_superblock};

use cffs_testing::setup::FILE;

const MIB: u64 = 1 << 20;

fn open(device: Arc<dyn BlockDevice>) -> Volume {
    let options = OpenOptions { cache_bytes: MIB, ..OpenOptions::default() };
    cffs::open(device, Arc::new(TestClock::default()), options).expect("open")
}

fn made() -> Image {
    let device = Arc::new(MemoryDevice::new(16 * MIB));
    let options = MkfsOptions {
        cg_blocks: 512,
        label: b"old".to_vec(),
        compression: Some(Compression::Off),
        ..MkfsOptions::default()
    };
    mkfs::make(&*device, &options).expect("mkfs");
    let volume = open(device.clone());
    let ino = volume.make(&Caller::ROOT, InodeNo::ROOT, b"file", &FILE).expect("made").ino;
    volume.write(&Caller::ROOT, ino, 0, &[5; 20_000]).expect("written");
    volume.close().expect("closed");
    device.snapshot()
}

fn changes() -> SetVolume {
    SetVolume {
        label: Some(b"new".to_vec()),
        uuid: Some([9; 16]),
        errors: Some(ErrorsPolicy::Continue),
        reserve: Some(Reserve { fragments: 100, uid: 1, gid: 2 }),
        compression: Some(Compression::Zstd(3)),
        policy: Some(Policy::Owner),
    }
}

fn is_new(superblock: &Superblock) -> bool {
    let is_new = superblock.label == b"new";
    assert_eq!(superblock.uuid == [9; 16], is_new);
    assert_eq!(superblock.errors_policy == ErrorsPolicy::Continue, is_new);
    assert_eq!(superblock.reserve.fragments == 100, is_new);
    assert_eq!(superblock.compression == Compression::Zstd(3), is_new);
    assert_eq!(superblock.policy == Policy::Owner, is_new);
    is_new
}

/// Checks the volume, and returns whether it has its new properties.
fn look(device: &Arc<MemoryDevice>) -> bool {
    open(device.clone()).close().expect("recovered");
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(&**device, &options, &()).expect("checked");
    assert!(report.problems.is_empty() && report.recovered.is_empty(), "{report:?}");
    let volume = open(device.clone());
    let ino = volume.lookup(InodeNo::ROOT, b"file").expect("there").ino;
    let mut contents = vec![0; 20_001];
    assert_eq!(volume.read(ino, 0, &mut contents).expect("read"), 20_000);
    assert!(contents[..20_000].iter().all(|byte| *byte == 5));
    is_new(&volume.writer().superblock.get())
}

#[test]
fn a_crash_leaves_all_old_properties_or_all_new_ones() {
    let mut seen = [0; 2];
    for seed in 0..10 {
        let device = Arc::new(CrashingDevice::new(made(), 6, seed));
        let volume = open(device.clone());
        if seed % 2 == 0 {
            assert!(volume.writer().checkpoints().mark_clean().expect("a checkpoint"));
        }
        device.take_images();
        volume.tune(&changes()).expect("tuned");
        for image in device.take_images() {
            seen[usize::from(look(&Arc::new(MemoryDevice::from_image(image))))] += 1;
        }
        assert!(look(&Arc::new(MemoryDevice::from_image(device.inner().durable()))), "durable");
    }
    assert!(seen[0] > 20 && seen[1] > 5, "{seen:?}");
}

#[test]
fn every_copy_has_the_new_properties() {
    let device = Arc::new(MemoryDevice::from_image(made()));
    let volume = open(device.clone());
    let tuned = volume.tune(&changes()).expect("tuned");
    assert!(is_new(&tuned));
    volume.close().expect("closed");
    let layout = Layout::new(&read_superblock(&*device).expect("a superblock"));
    let copies = layout.superblock_copies();
    assert!(copies.len() > 3);
    for copy in copies {
        let mut bytes = vec![0; 512];
        let offset = layout.block_offset(copy);
        device.read_at(offset, &mut bytes).expect("read");
        assert!(is_new(&Superblock::decode(&bytes, offset).expect("a superblock")), "{copy}");
    }
    assert!(look(&device));
}

#[test]
fn a_failure_of_the_device_is_reported_and_leaves_no_half_change() {
    let image = made();
    for target in [Target::writes(), Target::flushes()] {
        for nth in 0.. {
            let device = Arc::new(FaultDevice::new(MemoryDevice::from_image(image.clone()), 3));
            let volume = open(device.clone());
            let strike = Strike::From(nth);
            device.arm(Fault { target: target.clone(), strike, effect: Effect::IO_ERROR });
            let tuned = volume.tune(&changes());
            let struck = device.struck();
            device.disarm();
            assert_eq!(tuned.is_err(), struck > 0, "request {nth} of {target:?}");
            let _ = volume.close();
            let inner = Arc::new(MemoryDevice::from_image(device.inner().snapshot()));
            let is_new = look(&inner);
            assert!(struck > 0 || is_new);
            if struck == 0 {
                break;
            }
        }
    }
}

/// The number of free fragments according to the bitmaps.
fn free_fragments(device: &MemoryDevice) -> u64 {
    let options = CheckOptions { force: true, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).expect("checked");
    assert!(report.problems.is_empty() && report.recovered.is_empty(), "{report:?}");
    report.free_fragments
}

#[test]
fn a_journal_is_given_and_taken_away_and_a_crash_leaves_the_one_or_the_other() {
    let without = made();
    let device = MemoryDevice::from_image(without.clone());
    let free = free_fragments(&device);
    let given = mkfs::set_journal(&device, Some(256 << 10)).expect("given");
    assert_eq!(free_fragments(&device), free - 256);
    let with = device.snapshot();
    assert_eq!(mkfs::set_journal(&device, None).expect("taken").journal.blocks, 0);
    assert_eq!(free_fragments(&device), free);
    assert!(
        mkfs::set_journal(&MemoryDevice::from_image(with.clone()), Some(4 << 20)).is_err(),
        "it has one"
    );

    let mut seen = [[0; 2]; 2];
    for (image, bytes, gives) in [(without, Some(256 << 10), 0), (with, None, 1)] {
        for seed in 0..10 {
            let crashing = CrashingDevice::new(image.clone(), 6, seed);
            mkfs::set_journal(&crashing, bytes).expect("set");
            for image in crashing.take_images() {
                let device = Arc::new(MemoryDevice::from_image(image));
                look(&device);
                let superblock = read_superblock(&*device).expect("a superblock");
                let is_journaled = superblock.journal.blocks == given.journal.blocks;
                assert_eq!(free_fragments(&device), free - 256 * u64::from(is_journaled));
                seen[gives][usize::from(is_journaled)] += 1;
            }
        }
    }
    assert!(seen.iter().flatten().all(|count| *count > 20), "{seen:?}");
}

#[test]
fn a_volume_without_room_for_a_journal_gets_none() {
    let device = Arc::new(MemoryDevice::from_image(made()));
    let volume = open(device.clone());
    let ino = volume.make(&Caller::ROOT, InodeNo::ROOT, b"large", &FILE).expect("made").ino;
    let mut len = 0;
    while volume
        .write(&Caller::ROOT, ino, len, &[6; 100_000])
        .is_ok_and(|written| written == 100_000)
    {
        len += 100_000;
    }
    volume.close().expect("closed");
    let before = read_superblock(&*device).expect("a superblock");
    let error = mkfs::set_journal(&*device, Some(256 << 10)).expect_err("refused");
    assert!(error.to_string().contains("cffs grow"), "{error}");
    let error = mkfs::set_journal(&*device, Some(1 << 30)).expect_err("refused");
    assert!(error.to_string().contains("it may have from"), "{error}");
    assert_eq!(read_superblock(&*device).expect("a superblock"), before);
}

/// A volume that needs recovery has changes that are not in its bitmaps yet.
#[test]
fn a_volume_in_use_gets_no_journal() {
    let device = Arc::new(MemoryDevice::from_image(made()));
    let _volume = open(device.clone());
    let error = mkfs::set_journal(&*device, Some(256 << 10)).expect_err("refused");
    assert!(error.to_string().contains("not left clean"), "{error}");
}

/// Two files of one user share a key if they were made after the change, on the volume in use and later.
#[test]
fn a_policy_decides_about_new_files_from_then_on() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_image(made()));
    let make = |volume: &Volume, name: &str| {
        volume.make(&Caller::ROOT, InodeNo::ROOT, name.as_bytes(), &FILE).expect("made").ino
    };
    let tune = |volume: &Volume, policy| {
        volume.tune(&SetVolume { policy: Some(policy), ..SetVolume::default() })
    };
    let key = |volume: &Volume, ino| volume.admin().placement_key(ino).expect("found");
    let volume = open(device.clone());
    let before = make(&volume, "before");
    tune(&volume, Policy::Owner).expect("tuned");
    let after = make(&volume, "after");
    assert_eq!(key(&volume, before), Key(InodeNo::ROOT.0));
    assert!(key(&volume, after).is_own());
    volume.close().expect("closed");
    let volume = open(device.clone());
    assert_eq!(key(&volume, make(&volume, "later")), key(&volume, after));
    assert_eq!(key(&volume, before), Key(InodeNo::ROOT.0));
    tune(&volume, Policy::Directory).expect("tuned");
    assert_eq!(key(&volume, make(&volume, "last")), Key(InodeNo::ROOT.0));
    assert!(matches!(tune(&volume, Policy::Scattered), Err(Error::Unsupported(_))));
    assert_eq!(volume.writer().superblock.get().policy, Policy::Directory);
    volume.close().expect("closed");
}

#[test]
fn a_volume_without_grouping_keeps_its_policy() {
    let device = Arc::new(MemoryDevice::new(16 * MIB));
    let options = MkfsOptions { policy: Policy::None, ..MkfsOptions::default() };
    mkfs::make(&*device, &options).expect("mkfs");
    let volume = open(device);
    let tune = |policy| volume.tune(&SetVolume { policy: Some(policy), ..SetVolume::default() });
    for policy in [Policy::Directory, Policy::Scattered] {
        assert!(matches!(tune(policy), Err(Error::Unsupported(_))), "{}", policy.name());
    }
    assert_eq!(tune(Policy::None).expect("unchanged").policy, Policy::None);
    volume.close().expect("closed");
}
