//! Each procedure in the normal case.

use std::sync::Barrier;

use cffs::format::inode::InodeFlags;
use cffs::units::InodeNo;
use cffs::vfs::types::SetAttr;
use cffs::vfs::{Amount, Caller, Quotas};

use super::*;

const ALL: &str = "/:insecure,no_root_squash";

#[test]
fn contents_can_be_read_back() {
    let served = Served::new(&[ALL]);
    let mut client = served.client(0, 0);
    let root = served.root();
    now(client.null()).expect("an answer");
    let file = create(&mut client, &root, "f", 0o640);
    let big = vec![7; 300_000];
    let written = ok(now(client.write(&write_args(&file, 0, &big, stable_how::UNSTABLE))));
    assert_eq!((written.count, written.committed), (300_000, stable_how::UNSTABLE));
    assert!(matches!(written.file_wcc.before, Nfs3Option::Some(before) if before.size == 0));
    let tail = ok(now(client.write(&write_args(&file, 300_000, b"end", stable_how::FILE_SYNC))));
    assert_eq!(tail.verf, written.verf, "one server, one verifier");
    let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    assert_eq!(ok(now(client.commit(&commit))).verf, written.verf);
    let read = ok(now(client.read(&read_args(&file))));
    assert_eq!((read.count, read.eof), (300_003, true));
    assert_eq!(&read.data[..], [&big[..], b"end"].concat());
    let part = READ3args { offset: 299_999, count: 2, ..read_args(&file) };
    let part = ok(now(client.read(&part)));
    assert_eq!((&part.data[..], part.eof), (&b"\x07e"[..], false));
    let past = READ3args { offset: 1 << 40, ..read_args(&file) };
    assert_eq!((ok(now(client.read(&past))).count, true), (0, true));
    let attributes = attributes(&mut client, &file);
    assert_eq!((attributes.size, attributes.mode, attributes.nlink), (300_003, 0o640, 1));
}

#[test]
fn names_are_created_and_removed() {
    let served = Served::new(&[ALL]);
    let mut client = served.client(0, 0);
    let root = served.root();
    let dir = mkdir(&mut client, &root, "d", 0o755);
    let file = create(&mut client, &dir, "f", 0o644);
    let guarded =
        CREATE3args { where_: at(&dir, "f"), how: createhow3::GUARDED(sattr3::default()) };
    assert_eq!(failure(now(client.create(&guarded))), nfsstat3::NFS3ERR_EXIST);
    let found = ok(lookup(&mut client, &dir, "f"));
    assert_eq!(found.object, file);
    assert_eq!(ok(lookup(&mut client, &dir, "..")).object, root);
    assert_eq!(ok(lookup(&mut client, &root, "..")).object, root);
    let link = LINK3args { file: file.clone(), link: at(&root, "l") };
    let linked = ok(now(client.link(&link)));
    assert_eq!(some(linked.file_attributes).nlink, 2);
    let rename = RENAME3args { from: at(&dir, "f"), to: at(&root, "g") };
    let renamed = ok(now(client.rename(&rename)));
    assert!(
        matches!(renamed.fromdir_wcc.before, Nfs3Option::Some(_)),
        "no other caller changed it"
    );
    assert_eq!(failure(lookup(&mut client, &dir, "f")), nfsstat3::NFS3ERR_NOENT);
    ok(now(client.remove(&REMOVE3args { object: at(&root, "g") })));
    let remove_dir = RMDIR3args { object: at(&root, "d") };
    create(&mut client, &dir, "x", 0o644);
    assert_eq!(failure(now(client.rmdir(&remove_dir))), nfsstat3::NFS3ERR_NOTEMPTY);
    ok(now(client.remove(&REMOVE3args { object: at(&dir, "x") })));
    ok(now(client.rmdir(&remove_dir)));
    assert_eq!(failure(lookup(&mut client, &dir, "x")), nfsstat3::NFS3ERR_STALE);
    ok(now(client.remove(&REMOVE3args { object: at(&root, "l") })));
    let gone = now(client.getattr(&GETATTR3args { object: file }));
    assert_eq!(failure(gone), nfsstat3::NFS3ERR_STALE);
}

/// Regression: the file stayed, although the client was told that it was not made; later only in a directory
/// that is append-only.
#[test]
fn a_file_that_cannot_get_its_attributes_is_not_made() {
    let served = Served::new(&[ALL]);
    let mut client = served.client(0, 0);
    let root = served.root();
    served.volume.set_flags(InodeNo::ROOT, InodeFlags::APPEND_ONLY).expect("set");
    let attributes = |size| sattr3 { size: Nfs3Option::Some(size), ..sattr3::default() };
    let file =
        CREATE3args { where_: at(&root, "f"), how: createhow3::GUARDED(attributes(u64::MAX)) };
    assert_eq!(failure(now(client.create(&file))), nfsstat3::NFS3ERR_FBIG);
    assert_eq!(failure(lookup(&mut client, &root, "f")), nfsstat3::NFS3ERR_NOENT);
    let dir = MKDIR3args { where_: at(&root, "d"), attributes: attributes(1) };
    assert_eq!(failure(now(client.mkdir(&dir))), nfsstat3::NFS3ERR_ISDIR);
    assert_eq!(failure(lookup(&mut client, &root, "d")), nfsstat3::NFS3ERR_NOENT);
}

/// Regression: a file first had no attributes, and was removed with the writes of other clients if it could
/// not get them.
#[test]
fn a_new_file_has_its_attributes_from_the_beginning() {
    let served = Served::new(&[ALL]);
    let mut client = served.client(0, 0);
    let root = served.root();
    let time = nfstime3 { seconds: 1_000_000_000, nseconds: 7 };
    let attributes = sattr3 {
        mode: Nfs3Option::Some(0o640),
        uid: Nfs3Option::Some(10),
        gid: Nfs3Option::Some(20),
        size: Nfs3Option::Some(100_000),
        atime: set_atime::SET_TO_CLIENT_TIME(time),
        mtime: set_mtime::SET_TO_SERVER_TIME,
    };
    let args = CREATE3args { where_: at(&root, "f"), how: createhow3::GUARDED(attributes) };
    let made = some(ok(now(client.create(&args))).obj_attributes);
    assert_eq!((made.mode, made.uid, made.gid, made.size), (0o640, 10, 20, 100_000));
    assert_eq!((made.atime.seconds, made.atime.nseconds), (1_000_000_000, 7));
    let changes = |name: &[u8]| {
        let found = served.volume.lookup(InodeNo::ROOT, name).expect("found");
        served.volume.release(found.ino, 1);
        found.change
    };
    create(&mut client, &root, "g", 0o640);
    assert_eq!(changes(b"f"), changes(b"g") + 1, "all attributes are one change");
}

#[test]
fn special_files_are_created_as_requested() {
    let served = Served::new(&[ALL]);
    let mut client = served.client(0, 0);
    let root = served.root();
    let symlink = SYMLINK3args {
        where_: at(&root, "s"),
        symlink: symlinkdata3 {
            symlink_attributes: sattr3::default(),
            symlink_data: nfspath3(Opaque::borrowed(b"to/where")),
        },
    };
    let link = some(ok(now(client.symlink(&symlink))).obj);
    let target = ok(now(client.readlink(&READLINK3args { symlink: link.clone() })));
    assert_eq!(&target.data.0[..], b"to/where");
    assert_eq!(failure(now(client.read(&read_args(&link)))), nfsstat3::NFS3ERR_INVAL);
    let device = devicedata3 {
        dev_attributes: sattr3::default(),
        spec: specdata3 { specdata1: 1, specdata2: 3 },
    };
    let mknod = MKNOD3args { where_: at(&root, "null"), what: mknoddata3::NF3CHR(device) };
    let made = ok(now(client.mknod(&mknod)));
    let attributes = some(made.obj_attributes);
    assert_eq!(attributes.type_, ftype3::NF3CHR);
    assert_eq!((attributes.rdev.specdata1, attributes.rdev.specdata2), (1, 3));
    let fifo = MKNOD3args { where_: at(&root, "p"), what: mknoddata3::NF3FIFO(sattr3::default()) };
    ok(now(client.mknod(&fifo)));
    let stat = ok(now(client.fsstat(&FSSTAT3args { fsroot: root.clone() })));
    assert!(stat.fbytes > 1 << 20 && stat.fbytes < stat.tbytes);
    let info = ok(now(client.fsinfo(&FSINFO3args { fsroot: root.clone() })));
    assert_eq!((info.rtmax, info.wtmax), (1 << 20, 1 << 20));
    let conf = ok(now(client.pathconf(&PATHCONF3args { object: root })));
    assert_eq!(conf.name_max, 255);
}

#[test]
fn attributes_are_set_if_the_guard_holds() {
    let served = Served::new(&[ALL]);
    let mut client = served.client(0, 0);
    let root = served.root();
    let file = create(&mut client, &root, "f", 0o644);
    let before = attributes(&mut client, &file);
    let new_attributes = sattr3 {
        mode: Nfs3Option::Some(0o600),
        uid: Nfs3Option::Some(7),
        size: Nfs3Option::Some(100),
        mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 5, nseconds: 6 }),
        ..sattr3::default()
    };
    let set = |guard| SETATTR3args {
        object: file.clone(),
        new_attributes: new_attributes.clone(),
        guard,
    };
    let stale = nfstime3 { seconds: 1, nseconds: 1 };
    let refused = now(client.setattr(&set(Nfs3Option::Some(stale))));
    assert_eq!(failure(refused), nfsstat3::NFS3ERR_NOT_SYNC);
    let wcc = ok(now(client.setattr(&set(Nfs3Option::Some(before.ctime))))).obj_wcc;
    assert!(matches!(wcc.before, Nfs3Option::Some(sent) if sent.size == 0));
    let after = some(wcc.after);
    assert_eq!((after.mode, after.uid, after.size), (0o600, 7, 100));
    assert_eq!((after.mtime.seconds, after.mtime.nseconds), (5, 6));
}

/// Several clients change a file concurrently, with the same guard: the first succeeds, and the guard refuses
/// the others.
#[test]
fn one_of_the_clients_with_one_guard_passes() {
    let served = Served::new(&[ALL]);
    let root = served.root();
    let file = create(&mut served.client(0, 0), &root, "f", 0o644);
    let mut clients: Vec<_> = (0..4).map(|_| served.client(0, 0)).collect();
    for round in 0..200 {
        let ctime = attributes(&mut clients[0], &file).ctime;
        let size = if round % 2 == 0 { Nfs3Option::Some(round) } else { Nfs3Option::None };
        let new_attributes = sattr3 { mode: Nfs3Option::Some(0o600), size, ..sattr3::default() };
        let guard = Nfs3Option::Some(ctime);
        let set = &SETATTR3args { object: file.clone(), new_attributes, guard };
        let together = &Barrier::new(clients.len());
        let passed: Vec<bool> = thread::scope(|scope| {
            let setting = clients.iter_mut().map(|client| {
                scope.spawn(move || {
                    together.wait();
                    match now(client.setattr(set)).expect("an answer") {
                        Nfs3Result::Ok(_) => true,
                        Nfs3Result::Err((nfsstat3::NFS3ERR_NOT_SYNC, _)) => false,
                        Nfs3Result::Err(failure) => panic!("{failure:?}"),
                    }
                })
            });
            let setting: Vec<_> = setting.collect();
            setting.into_iter().map(|set| set.join().expect("ended")).collect()
        });
        assert_eq!(passed.iter().filter(|passed| **passed).count(), 1, "round {round}");
    }
}

/// Regression: another change between the size and the mode made the guard fail, after the size was set.
#[test]
fn a_guard_that_fails_leaves_the_size() {
    let served = Served::new(&[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let file = create(&mut client, &root, "f", 0o644);
    let ino = served.volume.lookup(InodeNo::ROOT, b"f").expect("there").ino;
    for round in 0..1000 {
        let before = attributes(&mut client, &file);
        let size = 100_000 + round;
        let (size_too, mode) = (Nfs3Option::Some(size), Nfs3Option::Some(0o600));
        let new_attributes = sattr3 { mode, size: size_too, ..sattr3::default() };
        let guard = Nfs3Option::Some(before.ctime);
        let set = SETATTR3args { object: file.clone(), new_attributes, guard };
        let is_over = AtomicBool::new(false);
        let is_set = thread::scope(|scope| {
            // Changes the file as soon as the size has changed.
            scope.spawn(|| {
                while served.volume.attr(ino).expect("there").size != size {
                    if is_over.load(Ordering::Acquire) {
                        return;
                    }
                }
                let between = SetAttr { permissions: Some(0o640), ..SetAttr::default() };
                served.volume.set_attr(&Caller::ROOT, ino, &between).expect("set");
            });
            let answer = now(client.setattr(&set));
            is_over.store(true, Ordering::Release);
            match answer.expect("an answer") {
                Nfs3Result::Ok(_) => true,
                Nfs3Result::Err((nfsstat3::NFS3ERR_NOT_SYNC, _)) => false,
                Nfs3Result::Err(failure) => panic!("{failure:?}"),
            }
        });
        let expected = if is_set { size } else { before.size };
        assert_eq!(attributes(&mut client, &file).size, expected, "round {round}");
    }
}

#[test]
fn a_repeated_exclusive_create_finds_its_file() {
    let served = Served::new(&[ALL]);
    let root = served.root();
    let create = |verifier| CREATE3args {
        where_: at(&root, "f"),
        how: createhow3::EXCLUSIVE(createverf3(verifier)),
    };
    let first = ok(now(served.client(0, 0).create(&create([9; 8])))).obj;
    // On another connection, so that no cached reply is used.
    let again = ok(now(served.client(0, 0).create(&create([9; 8])))).obj;
    assert_eq!(some(first), some(again));
    let other = now(served.client(0, 0).create(&create([8; 8])));
    assert_eq!(failure(other), nfsstat3::NFS3ERR_EXIST);
}

#[test]
fn listings_continue_where_they_stopped_also_after_a_restart() {
    let mut served = Served::new(&[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    for number in 0..200 {
        create(&mut client, &root, &format!("file {number}"), 0o644);
    }
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let args = READDIRPLUS3args {
            dir: root.clone(),
            cookie,
            // Not zero, as RFC 1813 requires for the first call: some clients begin with another value.
            cookieverf: cookieverf3(*b"whatever"),
            dircount: 1 << 20,
            maxcount: 4096,
        };
        let listed = ok(now(client.readdirplus(&args)));
        for entry in listed.reply.entries.into_inner() {
            cookie = entry.cookie;
            names.push(String::from_utf8(entry.name.as_ref().to_vec()).expect("text"));
            let found = ok(lookup(&mut client, &root, names.last().expect("one")));
            assert_eq!(some(entry.name_handle), found.object);
            assert_eq!(some(entry.name_attributes).fileid, entry.fileid);
        }
        if listed.reply.eof {
            break;
        }
        if names.len() > 100 {
            // Handles and cookies stay valid after the server ends.
            drop(client);
            served.stop();
            served = Served::of(Arc::clone(&served.volume), &[ALL]);
            client = served.client(0, 0);
        }
    }
    names.sort();
    let mut all: Vec<_> = (0..200).map(|number| format!("file {number}")).collect();
    all.extend([String::from("."), String::from("..")]);
    all.sort();
    assert_eq!(names, all);
    let small = READDIR3args {
        dir: root.clone(),
        cookie: 0,
        cookieverf: cookieverf3::default(),
        count: 100,
    };
    assert_eq!(failure(now(client.readdir(&small))), nfsstat3::NFS3ERR_TOOSMALL);
    let listed = ok(now(client.readdir(&READDIR3args { count: 1 << 20, ..small })));
    assert_eq!((listed.reply.entries.into_inner().len(), listed.reply.eof), (202, true));
}

#[test]
fn a_directory_can_be_mounted_by_its_path() {
    let served = Served::new(&[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let dir = mkdir(&mut client, &root, "a", 0o755);
    let below = mkdir(&mut client, &dir, "b", 0o755);
    create(&mut client, &dir, "f", 0o644);
    assert_eq!(served.handle("/a/b"), Some(below));
    // Some clients use it for the root, and rpc.mountd accepts it.
    assert_eq!(served.handle(""), Some(root));
    for wrong in ["/a/f", "/c", "/a/../a", "a", "a/b", "."] {
        assert_eq!(served.handle(wrong), None, "{wrong}");
    }
}

#[test]
fn a_quota_limits_nfs_clients() {
    let served = Served::new(&[ALL]);
    let mut client = served.client(0, 0);
    let root = served.root();
    let dir = mkdir(&mut client, &root, "d", 0o755);
    let ino = served.volume.lookup(InodeNo::ROOT, b"d").expect("made").ino;
    served.volume.release(ino, 1);
    let limits = Amount { bytes: 1 << 20, files: 3 };
    Quotas::of(&served.volume).set(ino, limits).expect("set");
    let stat = ok(now(client.fsstat(&FSSTAT3args { fsroot: dir.clone() })));
    assert_eq!((stat.tbytes, stat.ffiles), (1 << 20, 2));
    let file = create(&mut client, &dir, "f", 0o644);
    let big = vec![7; 300_000];
    for offset in [0, 300_000, 600_000] {
        ok(now(client.write(&write_args(&file, offset, &big, stable_how::UNSTABLE))));
    }
    // A part of the next write fits.
    let written = ok(now(client.write(&write_args(&file, 900_000, &big, stable_how::UNSTABLE))));
    assert!(written.count < 300_000);
    let end = 900_000 + u64::from(written.count);
    let refused = now(client.write(&write_args(&file, end, &big, stable_how::UNSTABLE)));
    assert_eq!(failure(refused), nfsstat3::NFS3ERR_DQUOT);
    let link = LINK3args { file, link: at(&root, "outside") };
    assert_eq!(failure(now(client.link(&link))), nfsstat3::NFS3ERR_XDEV);
    let how = createhow3::GUARDED(sattr3::default());
    let more = CREATE3args { where_: at(&dir, "g"), how };
    assert_eq!(failure(now(client.create(&more))), nfsstat3::NFS3ERR_DQUOT);
}
