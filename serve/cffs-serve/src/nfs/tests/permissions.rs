//! Refused calls.

use cffs::vfs::types::AtimeMode;
use cffs::vfs::{Caller, XattrMode};

use super::consistency::ino;
use super::*;
use crate::shared::Change;

#[test]
fn modes_hold_and_owners_read_and_write_regardless() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut admin = served.client(0, 0);
    let dir = mkdir(&mut admin, &root, "shared", 0o777);
    let (mut owner, mut other) = (served.client(10, 10), served.client(11, 11));
    assert_eq!(
        failure(now(
            other.mkdir(&MKDIR3args { where_: at(&root, "no"), attributes: sattr3::default() })
        )),
        nfsstat3::NFS3ERR_ACCES
    );
    let file = create(&mut owner, &dir, "f", 0o000);
    ok(now(owner.write(&write_args(&file, 0, b"mine", stable_how::FILE_SYNC))));
    assert_eq!(&ok(now(owner.read(&read_args(&file)))).data[..], b"mine");
    assert_eq!(failure(now(other.read(&read_args(&file)))), nfsstat3::NFS3ERR_ACCES);
    let write = write_args(&file, 0, b"yours", stable_how::FILE_SYNC);
    assert_eq!(failure(now(other.write(&write))), nfsstat3::NFS3ERR_ACCES);
    let set = |new_attributes| SETATTR3args {
        object: file.clone(),
        new_attributes,
        guard: Nfs3Option::None,
    };
    let mode = sattr3 { mode: Nfs3Option::Some(0o777), ..sattr3::default() };
    assert_eq!(failure(now(other.setattr(&set(mode.clone())))), nfsstat3::NFS3ERR_PERM);
    let give = sattr3 { uid: Nfs3Option::Some(11), ..sattr3::default() };
    assert_eq!(failure(now(owner.setattr(&set(give)))), nfsstat3::NFS3ERR_PERM);
    ok(now(owner.setattr(&set(mode))));
    ok(now(other.write(&write)));
    let access = ACCESS3args { object: file, access: 0x3f };
    let granted = ok(now(other.access(&access))).access;
    assert_eq!(granted, ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_EXECUTE);
}

#[test]
fn permission_to_execute_implies_reading() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let file = create(&mut served.client(0, 0), &root, "program", 0o711);
    ok(now(served.client(10, 10).read(&read_args(&file))));
}

#[test]
fn the_sticky_bit_keeps_others_from_names() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let dir = mkdir(&mut served.client(0, 0), &root, "tmp", 0o1777);
    let (mut owner, mut other) = (served.client(10, 10), served.client(11, 11));
    create(&mut owner, &dir, "f", 0o666);
    create(&mut other, &dir, "g", 0o666);
    let remove = REMOVE3args { object: at(&dir, "f") };
    assert_eq!(failure(now(other.remove(&remove))), nfsstat3::NFS3ERR_PERM);
    let away = RENAME3args { from: at(&dir, "f"), to: at(&dir, "h") };
    assert_eq!(failure(now(other.rename(&away))), nfsstat3::NFS3ERR_PERM);
    let over = RENAME3args { from: at(&dir, "g"), to: at(&dir, "f") };
    assert_eq!(failure(now(other.rename(&over))), nfsstat3::NFS3ERR_PERM);
    ok(now(owner.remove(&remove)));
}

/// Sets the flag when dropped, also after a failing test.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A user removes the name of his own file just when the name is given to another user's file: that file
/// stays.
#[test]
fn the_sticky_bit_keeps_a_name_that_changes_hands() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut admin = served.client(0, 0);
    let dir = mkdir(&mut admin, &root, "tmp", 0o1777);
    let mut reader = served.client(0, 0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (to, mut taker) in
            [(None, served.client(10, 10)), (Some("taken"), served.client(10, 10))]
        {
            let (dir, is_over) = (&dir, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let taken = match to {
                        None => now(taker.remove(&REMOVE3args { object: at(dir, "f") })).map(drop),
                        Some(to) => {
                            let away = RENAME3args { from: at(dir, "f"), to: at(dir, to) };
                            now(taker.rename(&away)).map(drop)
                        }
                    };
                    taken.expect("an answer");
                }
            });
        }
        let _end = Ends(&is_over);
        let mut place = |uid| {
            let attributes = sattr3 { uid: Nfs3Option::Some(uid), ..sattr3::default() };
            let how = createhow3::UNCHECKED(attributes);
            ok(now(admin.create(&CREATE3args { where_: at(&dir, "new"), how })));
            let over = RENAME3args { from: at(&dir, "new"), to: at(&dir, "f") };
            ok(now(admin.rename(&over)));
        };
        for round in 0..500 {
            place(10);
            place(11);
            let kept = now(reader.lookup(&LOOKUP3args { what: at(&dir, "f") }));
            assert!(matches!(kept, Ok(Nfs3Result::Ok(_))), "round {round}");
        }
    });
}

#[test]
fn a_write_takes_set_id_bits() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut admin = served.client(0, 0);
    let file = create(&mut admin, &root, "f", 0o6777);
    ok(now(admin.write(&write_args(&file, 0, b"x", stable_how::FILE_SYNC))));
    assert_eq!(attributes(&mut admin, &file).mode, 0o6777);
    ok(now(served.client(10, 10).write(&write_args(&file, 0, b"y", stable_how::FILE_SYNC))));
    assert_eq!(attributes(&mut admin, &file).mode, 0o777);
}

/// Regression: SETATTR kept the capabilities of a program that it truncated or gave to another owner.
#[test]
fn a_truncation_and_a_new_owner_remove_capabilities() {
    const CAPABILITY: &[u8] = b"security.capability";
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut admin = served.client(0, 0);
    let truncated = sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() };
    let given = sattr3 { uid: Nfs3Option::Some(10), ..sattr3::default() };
    for (name, new_attributes) in [("truncated", truncated), ("given", given)] {
        let file = create(&mut admin, &root, name, 0o755);
        let ino = ino(&served, &file);
        let set = served.volume.set_xattr(&Caller::ROOT, ino, CAPABILITY, b"all", XattrMode::Any);
        set.expect("set");
        let set = SETATTR3args { object: file, new_attributes, guard: Nfs3Option::None };
        ok(now(admin.setattr(&set)));
        assert_eq!(served.volume.xattr_names(ino).expect("names").len(), 0, "{name}");
    }
}

/// Regression: CREATE and MKNOD kept set-group-ID on a program whose directory gives it a group to which its
/// creator does not belong; SETATTR and WRITE cleared it.
#[test]
fn a_stranger_makes_no_program_with_the_rights_of_a_directorys_group() {
    let served = Served::new(&["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut admin = served.client(0, 0);
    let dir = mkdir(&mut admin, &root, "shared", 0o2777);
    let group = sattr3 { gid: Nfs3Option::Some(60), ..sattr3::default() };
    let mode = sattr3 { mode: Nfs3Option::Some(0o2777), ..sattr3::default() };
    for new_attributes in [group, mode] {
        let set = SETATTR3args { object: dir.clone(), new_attributes, guard: Nfs3Option::None };
        ok(now(admin.setattr(&set)));
    }
    let attributes = sattr3 { mode: Nfs3Option::Some(0o2775), ..sattr3::default() };
    let cases = [(7, 7, 0o775), (7, 60, 0o2775), (0, 0, 0o2775)];
    for (number, (uid, gid, expected)) in cases.into_iter().enumerate() {
        let mut client = served.client(uid, gid);
        let file = create(&mut client, &dir, &format!("f{number}"), 0o2775);
        let name = format!("p{number}");
        let what = mknoddata3::NF3FIFO(attributes.clone());
        let pipe = some(ok(now(client.mknod(&MKNOD3args { where_: at(&dir, &name), what }))).obj);
        let below = mkdir(&mut client, &dir, &format!("d{number}"), 0o755);
        for (made, mode) in [(file, expected), (pipe, expected), (below, 0o2755)] {
            let made = self::attributes(&mut client, &made);
            assert_eq!((made.mode, made.gid), (mode, 60), "made by {uid}:{gid}");
        }
    }
}

#[test]
fn root_is_anonymous_unless_told_otherwise() {
    let served = Served::new(&["/:insecure"]);
    let root = served.root();
    let made = now(served
        .client(0, 0)
        .mkdir(&MKDIR3args { where_: at(&root, "d"), attributes: sattr3::default() }));
    assert_eq!(failure(made), nfsstat3::NFS3ERR_ACCES);
    let device =
        MKNOD3args { where_: at(&root, "p"), what: mknoddata3::NF3FIFO(sattr3::default()) };
    assert_eq!(failure(now(served.client(0, 0).mknod(&device))), nfsstat3::NFS3ERR_ACCES);
}

#[test]
fn nothing_can_be_changed_through_a_read_only_export() {
    let served = Served::new(&["/:insecure,no_root_squash,ro"]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let make = MKDIR3args { where_: at(&root, "d"), attributes: sattr3::default() };
    assert_eq!(failure(now(client.mkdir(&make))), nfsstat3::NFS3ERR_ROFS);
    let access = ACCESS3args { object: root, access: 0x1f };
    assert_eq!(ok(now(client.access(&access))).access, ACCESS3_READ | ACCESS3_LOOKUP);
}

/// Regression: on a volume that was mounted read-only, ACCESS granted changes, which then failed.
#[test]
fn a_volume_that_is_open_for_reading_only_grants_no_changes() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    cffs::mkfs::make(&*device, &Default::default()).expect("made");
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = cffs::open(device, Arc::new(SystemClock), options).expect("opened");
    let served = Served::of(Arc::new(volume), &["/:insecure,no_root_squash"]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let make = MKDIR3args { where_: at(&root, "d"), attributes: sattr3::default() };
    assert_eq!(failure(now(client.mkdir(&make))), nfsstat3::NFS3ERR_ROFS);
    let access = ACCESS3args { object: root, access: 0x1f };
    assert_eq!(ok(now(client.access(&access))).access, ACCESS3_READ | ACCESS3_LOOKUP);
}

/// A mount that is read-only from time to time.
#[derive(Default)]
struct Remounted(AtomicBool);

impl Observer for Remounted {
    fn changed(&self, _: Change<'_>) {}
    fn broken(&self) {}
    fn refuses_changes(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Regression: after `mount -o remount,ro`, clients of a mount continued changing it, and their reads set
/// access times.
#[test]
fn clients_change_nothing_while_the_mount_is_read_only() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    cffs::mkfs::make(&*device, &Default::default()).expect("made");
    let options = OpenOptions { atime: AtimeMode::Strict, ..OpenOptions::default() };
    let volume = cffs::open(device, Arc::new(SystemClock), options).expect("opened");
    let mount = Arc::new(Remounted::default());
    let exports = ["/:insecure,no_root_squash"];
    let served = Served::with_observer(Arc::new(volume), &exports, Arc::clone(&mount) as _);
    let root = served.root();
    let mut client = served.client(0, 0);
    let file = create(&mut client, &root, "f", 0o644);
    ok(now(client.write(&write_args(&file, 0, b"contents", stable_how::FILE_SYNC))));
    let seen = |client: &mut Client| {
        let attributes = attributes(client, &file);
        (attributes.atime.seconds, attributes.atime.nseconds, attributes.size)
    };
    let before = seen(&mut client);
    mount.0.store(true, Ordering::Release);
    let write = write_args(&file, 8, b"more", stable_how::UNSTABLE);
    assert_eq!(failure(now(client.write(&write))), nfsstat3::NFS3ERR_ROFS);
    let make = MKDIR3args { where_: at(&root, "d"), attributes: sattr3::default() };
    assert_eq!(failure(now(client.mkdir(&make))), nfsstat3::NFS3ERR_ROFS);
    let access = ACCESS3args { object: root.clone(), access: 0x1f };
    assert_eq!(ok(now(client.access(&access))).access, ACCESS3_READ | ACCESS3_LOOKUP);
    ok(now(client.read(&read_args(&file))));
    assert_eq!(seen(&mut client), before);

    mount.0.store(false, Ordering::Release);
    ok(now(client.read(&read_args(&file))));
    assert_ne!(seen(&mut client), before);
    ok(now(client.mkdir(&make)));
}

#[test]
fn no_client_leaves_an_export() {
    let whole = Served::new(&["/:insecure,no_root_squash"]);
    let mut client = whole.client(0, 0);
    let root = whole.root();
    let dir = mkdir(&mut client, &root, "srv", 0o755);
    let secret = create(&mut client, &root, "secret", 0o644);
    drop(client);
    let volume = Arc::clone(&whole.volume);
    drop(whole);
    let part = Served::of(volume, &["/srv:insecure,no_root_squash"]);
    let mut client = part.client(0, 0);
    assert_eq!(part.handle("/"), None);
    let top = part.handle("/srv").expect("exported");
    assert_eq!(ok(lookup(&mut client, &top, "..")).object, top);
    // Handles of the other export are invalid here, though the key is the same.
    for handle in [&dir, &secret] {
        let asked = now(client.getattr(&GETATTR3args { object: handle.clone() }));
        assert_eq!(failure(asked), nfsstat3::NFS3ERR_STALE);
    }
    let mut forged = top.data.to_vec();
    forged[19] ^= 1;
    let forged = nfs_fh3 { data: Opaque::owned(forged) };
    let asked = now(client.getattr(&GETATTR3args { object: forged }));
    assert_eq!(failure(asked), nfsstat3::NFS3ERR_BADHANDLE);
}

#[test]
fn only_ports_of_root_are_trusted() {
    let served = Served::new(&["/"]);
    assert_eq!(served.handle("/"), None, "a test calls from any port");
}

/// The effect of each option of an export: whether a client may mount, and the owners of files created by
/// root and by another user.
#[test]
fn each_option_of_an_export_does_what_exports_says() {
    const NOBODY: Option<(u32, u32)> = Some((65534, 65534));
    const USER: Option<(u32, u32)> = Some((1000, 100));
    let cases = [
        ("insecure", true, NOBODY, USER),
        ("insecure,rw", true, NOBODY, USER),
        ("insecure,ro", true, None, None),
        ("insecure,root_squash", true, NOBODY, USER),
        ("insecure,no_root_squash", true, Some((0, 0)), USER),
        ("insecure,all_squash", true, NOBODY, NOBODY),
        ("insecure,all_squash,anonuid=5,anongid=6", true, Some((5, 6)), Some((5, 6))),
        ("insecure,anonuid=5,anongid=6", true, Some((5, 6)), USER),
        ("insecure,127.0.0.1", true, NOBODY, USER),
        ("insecure,192.0.2.1,127.0.0.0/8", true, NOBODY, USER),
        ("insecure,192.0.2.0/24", false, None, None),
        ("insecure,::1", false, None, None),
        ("secure", false, None, None),
        ("", false, None, None),
    ];
    let first = Served::new(&["/:insecure,no_root_squash"]);
    let root = first.root();
    let mode = sattr3 { mode: Nfs3Option::Some(0o777), ..sattr3::default() };
    let set = SETATTR3args { object: root.clone(), new_attributes: mode, guard: Nfs3Option::None };
    ok(now(first.client(0, 0).setattr(&set)));
    for (options, is_admitted, by_root, by_user) in cases {
        let served = Served::of(Arc::clone(&first.volume), &[&format!("/:{options}")]);
        assert_eq!(served.handle("/"), is_admitted.then(|| root.clone()), "{options}");
        for ((uid, gid), expected) in [((0, 0), by_root), ((1000, 100), by_user)] {
            let mut client = served.client(uid, gid);
            let how = createhow3::GUARDED(sattr3::default());
            let made = now(client.create(&CREATE3args { where_: at(&root, "made"), how }));
            match expected {
                None => {
                    let refused = if is_admitted { "ROFS" } else { "ACCES" };
                    assert!(format!("{:?}", failure(made)).ends_with(refused), "{options}");
                }
                Some(owner) => {
                    let made = attributes(&mut client, &some(ok(made).obj));
                    assert_eq!((made.uid, made.gid), owner, "{options}, user {uid}");
                    ok(now(client.remove(&REMOVE3args { object: at(&root, "made") })));
                }
            }
        }
    }
}
