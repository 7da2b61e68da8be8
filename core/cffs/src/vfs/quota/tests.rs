//! Lists of quotas that no program writes: a volume with any list can be used and checked.

use super::*;
use crate::clock::TestClock;
use crate::device::MemoryDevice;
use crate::error::Corruption;
use crate::format::inode::FileType;
use crate::format::sector::{self, Body};
use crate::fsck::{self, CheckOptions, Repair};
use crate::mkfs::{self, MkfsOptions};
use crate::units::SectorIndex;
use crate::vfs::{Caller, NewFile, NewKind, OpenOptions, RenameMode};

const ROOT: InodeNo = InodeNo::ROOT;
const ME: &Caller<'static> = &Caller::ROOT;

fn new(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o755, uid: 0, gid: 0, times: None }
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
}

fn new_volume() -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(8 << 20));
    mkfs::make(&*device, &MkfsOptions::default()).expect("made");
    let volume = open(&device);
    (device, volume)
}

fn make(volume: &Volume, dir: InodeNo, name: &[u8], kind: NewKind<'_>) -> InodeNo {
    let made = volume.make(ME, dir, name, &new(kind)).expect("made").ino;
    volume.release(made, 1);
    made
}

/// The next number of the sequence (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A list with quotas of what is on the volume, and of what is not; or arbitrary bytes.
fn any_list(volume: &Volume, random: &mut u64, inodes: &[InodeNo]) -> Vec<u8> {
    if next(random).is_multiple_of(8) {
        return (0..next(random) % 300).map(|_| next(random) as u8).collect();
    }
    let records: Vec<QuotaRecord> = (0..1 + next(random) % 6)
        .map(|_| {
            let dir = inodes[next(random) as usize % inodes.len()];
            let generation =
                volume.inodes().get(dir).map_or(1, |vnode| vnode.state.read().inode.generation);
            let number = |random: &mut u64| match next(random) % 4 {
                0 => 0,
                1 => u64::MAX,
                2 => 20_000,
                _ => next(random),
            };
            QuotaRecord {
                dir,
                generation: if next(random).is_multiple_of(8) { 99 } else { generation },
                mounts: [0, volume.writer.superblock.get().mounts, u32::MAX]
                    [next(random) as usize % 3],
                limit_bytes: number(random),
                limit_files: number(random),
                used_bytes: number(random),
                used_files: number(random),
            }
        })
        .collect();
    let mut list = quota::encode(&records);
    list.truncate(list.len() - next(random) as usize % 2 * 7);
    list
}

/// A volume with a directory, its record with these values, and its mark of a valid account.
fn record_of(volume: &Volume, dir: InodeNo, used: Amount) -> QuotaRecord {
    let generation = volume.inodes().get(dir).expect("found").state.read().inode.generation;
    QuotaRecord {
        dir,
        generation,
        mounts: volume.writer.superblock.get().mounts,
        limit_bytes: u64::MAX,
        limit_files: u64::MAX,
        used_bytes: used.bytes,
        used_files: used.files,
    }
}

/// An account that counts is shown as it is, and one that may be wrong is counted by the next opening.
#[test]
fn the_next_opening_takes_an_account_unless_it_is_doubtful() {
    let (device, volume) = new_volume();
    let dir = make(&volume, ROOT, b"dir", NewKind::Directory);
    let wrong = Amount { bytes: 512, files: 77 };
    close_with(&volume, &quota::encode(&[record_of(&volume, dir, wrong)]));
    drop(volume);
    let used = |volume: &Volume| Quotas::of(volume).get(dir).expect("shown").used;
    let volume = open(&device);
    assert_eq!(used(&volume), wrong);
    volume.close().expect("closed");
    drop(volume);
    let volume = open(&device);
    assert_eq!(used(&volume), wrong);
    volume.accounts.at(dir).expect("an account").doubt_after(&Error::NoSpace);
    volume.close().expect("closed");
    drop(volume);
    let volume = open(&device);
    assert_eq!(used(&volume), wrong, "a lack of space leaves no change half made");
    let error = Error::Io(std::io::Error::other("a test"));
    volume.accounts.at(dir).expect("an account").doubt_after(&error);
    volume.close().expect("closed");
    drop(volume);
    let volume = open(&device);
    assert_eq!(used(&volume).files, 1);
}

/// A directory that could not be read when the volume was opened lost its quota.
#[test]
fn the_quota_of_a_directory_that_cannot_be_read_stays_in_the_list() {
    let (device, volume) = new_volume();
    let dir = make(&volume, ROOT, b"dir", NewKind::Directory);
    let other = make(&volume, ROOT, b"other", NewKind::Directory);
    let limits = Amount { bytes: 1 << 20, files: 5 };
    Quotas::of(&volume).set(dir, limits).expect("set");
    Quotas::of(&volume).set(other, Amount::UNLIMITED).expect("set");
    let record = QuotaRecord {
        limit_bytes: limits.bytes,
        limit_files: limits.files,
        ..record_of(&volume, dir, Amount::default())
    };
    volume.accounts.remove(dir);
    volume.accounts.keep_unread(record);
    volume.close().expect("closed");
    drop(volume);
    let volume = open(&device);
    let quota = Quotas::of(&volume).get(dir).expect("shown");
    assert_eq!((quota.limits, quota.used.files), (limits, 1));
}

/// Adds a name to the first sector of a directory that says that another directory is a file.
fn forge_name(volume: &Volume, dir: InodeNo, ino: InodeNo) {
    let vnode = volume.writer.vnode(dir).expect("found");
    let forge = |inodes: &InodeCache, dir: &mut VnodeGuard<'_>| {
        let body = Body::Reference { ino, sector: SectorIndex(0) };
        let image = inodes.containers().sector_mut(dir, SectorIndex(0))?;
        sector::insert(image, 7, b"forged", FileType::Regular, &body).ok_or(Error::NoSpace)
    };
    volume.change_vnode(Spender::Privileged, &vnode, forge).expect("written");
}

/// A name of the wrong type made a count give a directory another parent.
#[test]
fn a_count_leaves_out_a_directory_that_a_damaged_name_calls_a_file() {
    let (_, volume) = new_volume();
    let dir = make(&volume, ROOT, b"dir", NewKind::Directory);
    make(&volume, dir, b"file", NewKind::Regular);
    let other = make(&volume, ROOT, b"other", NewKind::Directory);
    let inner = make(&volume, other, b"inner", NewKind::Directory);
    forge_name(&volume, dir, inner);
    let parent = || volume.inodes().get(inner).expect("found").state.read().inode.parent;

    let refused = Quotas::of(&volume).set(dir, Amount::UNLIMITED);
    let wrong = Corruption::EntryType { dir, ino: inner };
    assert!(matches!(&refused, Err(Error::Corruption(error)) if *error == wrong), "{refused:?}");
    assert_eq!(parent(), other);

    let vnode = volume.inodes().get(dir).expect("found");
    let generation = vnode.state.read().inode.generation;
    let account = Arc::new(Account::new(dir, generation, Amount::UNLIMITED, Amount::default()));
    volume.accounts.insert(account.clone());
    Quotas::of(&volume).count_all(&[(account.clone(), Some(vnode))]).expect("counted");
    assert_eq!((account.used().files, account.is_doubtful()), (2, true));
    assert_eq!(parent(), other);
}

/// A quota whose directory has no path that can be read made the list of all quotas fail, and a limit that
/// was set seem refused.
#[test]
fn quotas_are_shown_if_a_path_cannot_be_read() {
    let (_, volume) = new_volume();
    let dir = make(&volume, ROOT, b"dir", NewKind::Directory);
    let other = make(&volume, ROOT, b"other", NewKind::Directory);
    let file = make(&volume, ROOT, b"file", NewKind::Regular);
    volume.write(ME, file, 0, &[3; 20_000]).expect("written");
    volume.sync().expect("synced");
    Quotas::of(&volume).set(dir, Amount::UNLIMITED).expect("set");
    Quotas::of(&volume).set(other, Amount::UNLIMITED).expect("set");
    let vnode = volume.inodes().get(dir).expect("found");
    // What is read of it are no names.
    vnode.state.write().inode.parent = file;
    let limited = Quotas::of(&volume).change(dir, Some(1 << 20), None).expect("set");
    assert_eq!(limited.limits.bytes, 1 << 20);
    let listed = Quotas::of(&volume).list().expect("listed");
    let paths: Vec<Vec<u8>> = listed.into_iter().map(|quota| quota.path).collect();
    assert_eq!(paths, [format!("(inode {dir})").into_bytes(), b"other".to_vec()]);
}

/// Gives the volume a list, and closes it.
fn close_with(volume: &Volume, list: &[u8]) {
    let add = |superblock: &mut Superblock| {
        superblock.ro_compat.insert(RoCompat::QUOTAS);
        Ok(())
    };
    volume.writer.rewrite_superblock(add, |_| ()).expect("written");
    let root = volume.writer.vnode(ROOT).expect("found");
    let write = |inodes: &InodeCache, file: &mut VnodeGuard<'_>| write_list(inodes, file, list);
    volume.change_vnode(Spender::Privileged, &root, write).expect("written");
    volume.close().expect("closed");
}

/// Fails unless this succeeded, or exceeds or crosses quotas, or did so before.
fn allow_quotas<T>(done: Result<T>) -> Option<T> {
    let is_allowed = |error: &Error| {
        matches!(error, Error::QuotaExceeded(_) | Error::OtherQuota | Error::NotFound)
    };
    done.inspect_err(|error| assert!(is_allowed(error), "{error:?}")).ok()
}

fn use_volume(volume: &Volume, [above, below, file]: [InodeNo; 3]) {
    for dir in [ROOT, above, below] {
        if let Some(made) = allow_quotas(volume.make(ME, dir, b"new", &new(NewKind::Regular))) {
            allow_quotas(volume.write(ME, made.ino, 0, &[1; 9000]));
            if allow_quotas(volume.link(made.ino, above, b"link")).is_some() {
                volume.release(made.ino, 1);
                volume.unlink(ME, above, b"link").expect("removed");
            }
            volume.release(made.ino, 1);
            volume.unlink(ME, dir, b"new").expect("removed");
        }
        Quotas::of(volume).stat_fs(dir);
        let _ = Quotas::of(volume).get(dir);
    }
    allow_quotas(volume.write(ME, file, 0, &[2; 30_000]));
    let rename = |from, to| volume.rename(ME, from, b"file", to, b"file", RenameMode::Replace);
    if allow_quotas(rename(above, ROOT)).is_some() {
        allow_quotas(rename(ROOT, above));
    }
    Quotas::of(volume).list().expect("listed");
    for dir in [below, above] {
        match Quotas::of(volume).set(dir, Amount::UNLIMITED) {
            Ok(_) => Quotas::of(volume).remove(dir).expect("removed"),
            Err(error) => {
                assert!(matches!(error, Error::Invalid(_) | Error::Unsupported(_)), "{error:?}")
            }
        }
    }
}

#[test]
fn a_volume_with_any_list_of_quotas_can_be_used_and_checked() {
    for seed in 0..200 {
        let mut random = seed;
        let (device, volume) = new_volume();
        let above = make(&volume, ROOT, b"above", NewKind::Directory);
        let below = make(&volume, above, b"below", NewKind::Directory);
        let file = make(&volume, above, b"file", NewKind::Regular);
        volume.write(ME, file, 0, &[3; 20_000]).expect("written");
        let absent = [InodeNo::EXTERNAL, InodeNo(0), InodeNo(77_777), InodeNo(u64::MAX)];
        let inodes = [&[ROOT, above, above, below, file][..], &absent].concat();
        close_with(&volume, &any_list(&volume, &mut random, &inodes));
        drop(volume);

        let volume = open(&device);
        use_volume(&volume, [above, below, file]);
        volume.close().expect("closed");
        drop(volume);
        let check = |repair| {
            let options = CheckOptions { repair, force: true, ..CheckOptions::default() };
            fsck::check(&*device, &options, &()).expect("checked")
        };
        check(Repair::Yes);
        let again = check(Repair::No);
        assert!(again.problems.is_empty(), "seed {seed}: {:?}", again.problems);
        let volume = open(&device);
        use_volume(&volume, [above, below, file]);
        volume.close().expect("closed");
    }
}
