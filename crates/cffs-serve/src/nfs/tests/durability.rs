//! What was answered survives a crash that comes right after.

use cffs::device::fault::{Effect, Fault, Strike, Target};
use cffs::device::{FaultDevice, Image, VolatileDevice};
use cffs::files::Files;

use super::*;

const ALL: &str = "/:insecure,no_root_squash";

fn image() -> Image {
    let device = MemoryDevice::new(64 << 20);
    cffs::mkfs::make(&device, &Default::default()).expect("made");
    device.snapshot()
}

/// The files after a crash in which everything is lost that no flush has brought to the device.
fn crashed(device: &VolatileDevice) -> Files {
    let device = Arc::new(MemoryDevice::from_image(device.durable()));
    let volume = cffs::open(device, Arc::new(SystemClock), OpenOptions::default());
    Files::new(Arc::new(volume.expect("recovered")))
}

#[test]
fn every_change_is_durable_when_it_is_answered() {
    let device = Arc::new(VolatileDevice::new(image()));
    let served = Served::over(Arc::clone(&device) as _, &[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let exists = |path: &str| crashed(&device).stat(path).is_ok();

    let dir = mkdir(&mut client, &root, "d", 0o755);
    assert!(exists("/d"), "MKDIR");
    let file = create(&mut client, &dir, "f", 0o644);
    assert!(exists("/d/f"), "CREATE");
    ok(now(client.write(&write_args(&file, 0, b"kept", stable_how::FILE_SYNC))));
    assert_eq!(crashed(&device).read("/d/f").expect("read"), b"kept", "WRITE");
    ok(now(client.write(&write_args(&file, 0, b"data", stable_how::DATA_SYNC))));
    assert_eq!(crashed(&device).read("/d/f").expect("read"), b"data", "WRITE of data");
    let mode = sattr3 { mode: Nfs3Option::Some(0o600), ..sattr3::default() };
    let set = SETATTR3args { object: file.clone(), new_attributes: mode, guard: Nfs3Option::None };
    ok(now(client.setattr(&set)));
    assert_eq!(crashed(&device).stat("/d/f").expect("there").permissions, 0o600, "SETATTR");
    let rename = RENAME3args { from: at(&dir, "f"), to: at(&root, "g") };
    ok(now(client.rename(&rename)));
    assert!(exists("/g") && !exists("/d/f"), "RENAME");
    let link = LINK3args { file: file.clone(), link: at(&dir, "l") };
    ok(now(client.link(&link)));
    assert!(exists("/g") && exists("/d/l"), "LINK");
    ok(now(client.remove(&REMOVE3args { object: at(&root, "g") })));
    assert!(!exists("/g") && exists("/d/l"), "REMOVE");
    ok(now(client.remove(&REMOVE3args { object: at(&dir, "l") })));
    ok(now(client.rmdir(&RMDIR3args { object: at(&root, "d") })));
    assert!(!exists("/d"), "RMDIR");
    let exclusive = createhow3::EXCLUSIVE(createverf3([3; 8]));
    ok(now(client.create(&CREATE3args { where_: at(&root, "x"), how: exclusive })));
    let times = crashed(&device).stat("/x").expect("there");
    assert_eq!((times.atime.seconds, times.mtime.seconds), (0x0303_0303, 0x0303_0303), "verifier");
}

#[test]
fn a_crash_before_the_commit_shows_in_the_verifier() {
    let device = Arc::new(VolatileDevice::new(image()));
    let served = Served::over(Arc::clone(&device) as _, &[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let file = create(&mut client, &root, "f", 0o644);
    let first = ok(now(client.write(&write_args(&file, 0, b"lost", stable_how::UNSTABLE))));
    let after_crash = device.durable();

    let again = Arc::new(VolatileDevice::new(after_crash));
    let served = Served::over(Arc::clone(&again) as _, &[ALL]);
    let mut client = served.client(0, 0);
    let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    let verifier = ok(now(client.commit(&commit))).verf;
    assert_ne!(verifier, first.verf, "the client has to write again");
    ok(now(client.write(&write_args(&file, 0, b"kept", stable_how::UNSTABLE))));
    assert_eq!(ok(now(client.commit(&commit))).verf, verifier);
    assert_eq!(crashed(&again).read("/f").expect("read"), b"kept");
}

#[test]
fn a_device_that_fails_is_not_covered_up() {
    let device = Arc::new(FaultDevice::new(MemoryDevice::from_image(image()), 1));
    let served = Served::over(Arc::clone(&device) as _, &[ALL]);
    let root = served.root();
    let mut client = served.client(0, 0);
    let file = create(&mut client, &root, "f", 0o644);
    let before = ok(now(client.write(&write_args(&file, 0, b"lost", stable_how::UNSTABLE)))).verf;
    device.arm(Fault {
        target: Target::writes(),
        strike: Strike::Always,
        effect: Effect::IO_ERROR,
    });
    let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    assert_eq!(failure(now(client.commit(&commit))), nfsstat3::NFS3ERR_IO);
    assert!(device.struck() > 0);
    assert_eq!(failure(now(client.commit(&commit))), nfsstat3::NFS3ERR_IO, "also the second time");
    let write = write_args(&file, 0, b"more", stable_how::UNSTABLE);
    assert_eq!(failure(now(client.write(&write))), nfsstat3::NFS3ERR_ROFS);
    assert_eq!(&ok(now(client.read(&read_args(&file)))).data[..], b"lost", "reads go on");
    assert_ne!(served.verifier(), before.0);
}
