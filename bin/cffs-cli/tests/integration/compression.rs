//! Compression on a mount: `chattr +c` and `+m`, and the figures that commands print about clusters.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::harness::{Scratch, can_mount, fail, succeed};
use rustix::fs::{AtFlags, CWD, IFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use serde_json::Value;

const COMPRESS: IFlags = IFlags::COMPRESSED;
/// `FS_NOCOMP_FL`.
const NO_COMPRESS: IFlags = IFlags::from_bits_retain(0x400);
const NOBODY: u32 = 65534;

fn compressed_volume() -> Scratch {
    let scratch = Scratch::new();
    let mkfs = ["mkfs", "-q", "--size", "256M", "--compress", "zstd"];
    succeed(scratch.cffs(mkfs).arg(scratch.image()));
    scratch
}

fn flags(path: &Path) -> IFlags {
    rustix::fs::ioctl_getflags(File::open(path).expect("opened")).expect("known")
}

fn set_flags(path: &Path, flags: IFlags) -> Result<(), Errno> {
    rustix::fs::ioctl_setflags(File::open(path).expect("opened"), flags)
}

fn json(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command)).expect("it is JSON")
}

/// Makes files that compress well.
fn fill(dir: &Path) {
    for number in 0..400 {
        let text: String = (0..900).map(|line| format!("line {}\n", line * number)).collect();
        fs::write(dir.join(format!("f{number}")), text).expect("written");
    }
}

#[test]
fn a_new_setting_says_what_it_applies_to() {
    let scratch = compressed_volume();
    for (codec, expected) in [
        ("zstd:5", "contents that are written are compressed with zstd:5, except in files with"),
        ("off", "contents that are written are not compressed, except in files with chattr +c;"),
    ] {
        let tuned = succeed(scratch.cffs(["tune", "--compress", codec]).arg(scratch.image()));
        assert!(tuned.contains(expected), "{tuned}");
        assert!(tuned.contains("stored contents stay as they are until"), "{tuned}");
    }
    let label = succeed(scratch.cffs(["tune", "--label", "new"]).arg(scratch.image()));
    assert!(!label.contains("from now on"), "{label}");
}

#[test]
fn chattr_decides_what_is_compressed_on_a_mount() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = compressed_volume();
    for transport in ["auto", "dev"] {
        scratch.mount(&format!("transport={transport}"));
        let dir = scratch.mountpoint().join(transport);
        fs::create_dir(&dir).expect("made");
        fs::write(dir.join("file"), b"contents").expect("written");
        let changed =
            || fs::metadata(dir.join("file")).map(|file| (file.ctime(), file.ctime_nsec()));
        let before = changed().expect("read");
        assert_eq!(set_flags(&dir.join("file"), COMPRESS | NO_COMPRESS), Err(Errno::INVAL));
        assert_eq!(set_flags(&dir.join("file"), IFlags::NODUMP), Err(Errno::OPNOTSUPP));
        assert_eq!(changed().expect("read"), before);
        set_flags(&dir.join("file"), COMPRESS).expect("set");
        assert_eq!(flags(&dir.join("file")), COMPRESS);
        assert!(changed().expect("read") > before, "the time of change is later");
        let lsattr = succeed(Command::new("lsattr").arg("-d").arg(dir.join("file")));
        assert!(lsattr.split(' ').next().is_some_and(|flags| flags.contains('c')), "{lsattr}");
        let shown = rustix::fs::statx(CWD, dir.join("file"), AtFlags::empty(), StatxFlags::BTIME);
        let shown = shown.expect("read");
        if shown.stx_attributes_mask.contains(StatxAttributes::COMPRESSED) {
            assert!(shown.stx_attributes.contains(StatxAttributes::COMPRESSED));
        }

        for (name, chattr) in [("never", "+m"), ("usual", "-m")] {
            fs::create_dir(dir.join(name)).expect("made");
            succeed(Command::new("chattr").arg(chattr).arg(dir.join(name)));
            fill(&dir.join(name));
        }
        assert_eq!(flags(&dir.join("never/f7")), NO_COMPRESS);
        assert_eq!(flags(&dir.join("usual/f7")), IFlags::empty());
        succeed(scratch.cffs(["sync"]).arg(&dir));
        let explain = |file: &str| json(scratch.cffs(["explain", "--json"]).arg(dir.join(file)));
        assert_eq!(explain("never/f7")["clusters"], Value::Null);
        let told = explain("usual/f7");
        assert!(told["clusters"]["parts_of_other_files"].as_u64() > Some(0), "{told}");
        assert!(told["clusters"]["ratio"].as_f64() > Some(1.0), "{told}");

        succeed(Command::new("mount").args(["-o", "remount,ro"]).arg(scratch.mountpoint()));
        assert_eq!(set_flags(&dir.join("file"), NO_COMPRESS), Err(Errno::ROFS));
        scratch.umount();
        scratch.assert_clean();
        scratch.mount("rw");
        assert_eq!(flags(&dir.join("never")), NO_COMPRESS, "the flag is durable");
        assert_eq!(flags(&dir.join("file")), COMPRESS);
        scratch.umount();
    }

    let scratch = Scratch::with_image();
    scratch.mount("rw");
    for flag in [COMPRESS, NO_COMPRESS] {
        assert_eq!(set_flags(&scratch.mountpoint(), flag), Err(Errno::OPNOTSUPP));
    }
    scratch.umount();
}

#[test]
fn only_the_owner_of_a_file_sets_its_flags_of_compression() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = compressed_volume();
    fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).expect("set");
    for options in ["allow_other", "allow_other,transport=dev"] {
        scratch.mount(options);
        let dir = scratch.mountpoint();
        let [own, other] = ["own", "other"].map(|name| dir.join(name));
        for path in [&own, &other] {
            fs::write(path, b"contents").expect("written");
        }
        chown(&own, Some(NOBODY), None).expect("given away");
        let chattr = |flag: &str, path: &Path| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--clear-groups", "chattr", flag]).arg(path);
            command
        };
        succeed(&mut chattr("+m", &own));
        assert_eq!(flags(&own), NO_COMPRESS);
        fail(1, &mut chattr("+m", &other));
        fail(1, &mut chattr("+i", &own));
        let with_capability = ["--reuid=65534", "--clear-groups", "--inh-caps=+fowner"];
        let mut capable = Command::new("setpriv");
        capable.args(with_capability).args(["--ambient-caps=+fowner", "chattr", "+m"]).arg(&other);
        succeed(&mut capable);
        assert_eq!(flags(&other), NO_COMPRESS);
        set_flags(&own, NO_COMPRESS | IFlags::IMMUTABLE).expect("set by root");
        fail(1, &mut chattr("-m", &own));
        assert_eq!(flags(&own), NO_COMPRESS | IFlags::IMMUTABLE);
        set_flags(&own, IFlags::empty()).expect("set by root");
        for path in [&own, &other] {
            fs::remove_file(path).expect("removed");
        }
        scratch.umount();
        scratch.assert_clean();
    }
}

#[test]
fn stats_and_layout_tell_what_compression_saves() {
    if !can_mount() {
        return;
    }
    let scratch = compressed_volume();
    scratch.mount("rw");
    let dir = scratch.mountpoint().join("d");
    fs::create_dir(&dir).expect("made");
    fill(&dir);
    succeed(scratch.cffs(["sync"]).arg(&dir));
    let stats = json(scratch.cffs(["stats", "--json"]).arg(&dir));
    let compression = &stats["compression"];
    assert!(compression["clusters_written"].as_u64() > Some(10), "{compression}");
    assert!(compression["ratio"].as_f64() > Some(1.5), "{compression}");
    assert_eq!(compression["clusters"], compression["clusters_written"]);
    let metrics = succeed(scratch.cffs(["stats", "--prometheus"]).arg(&dir));
    for metric in ["cffs_compression_clusters{", "cffs_compression_ratio{"] {
        assert!(metrics.contains(metric), "{metrics}");
    }
    for number in 0..200 {
        fs::remove_file(dir.join(format!("f{}", number * 2))).expect("removed");
    }
    let mounted = json(scratch.cffs(["layout", "--json"]).arg(&dir))["clusters"].take();
    assert!(mounted["dead_bytes"].as_u64() > Some(100 << 10), "{mounted}");
    assert_eq!((&mounted["incomplete"], &mounted["shared_bytes"]), (&0.into(), &0.into()));
    let told = succeed(scratch.cffs(["layout"]).arg(&dir));
    assert!(told.contains("of contents are dead, and 0 B are shared"), "{told}");
    scratch.umount();
    let image = json(scratch.cffs(["layout", "--json"]).arg(scratch.image()))["clusters"].take();
    assert_eq!(image, mounted);
    succeed(scratch.cffs(["regroup"]).arg(scratch.image()));
    let after = json(scratch.cffs(["layout", "--json"]).arg(scratch.image()))["clusters"].take();
    assert!(after["dead_bytes"].as_u64() < mounted["dead_bytes"].as_u64(), "{after}");
    assert!(after["stored_bytes"].as_u64() < mounted["stored_bytes"].as_u64(), "{after}");
    let plain = Scratch::with_image();
    plain.mount("rw");
    let stats = json(plain.cffs(["stats", "--json"]).arg(plain.mountpoint()));
    assert_eq!(stats["compression"], Value::Null);
    plain.umount();
}
