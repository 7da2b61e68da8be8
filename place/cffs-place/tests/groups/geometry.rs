//! How volumes are divided, as root and other users see it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cffs_place::extents;
use cffs_place::groups::Groups;
use cffs_place::shadow::Shadow;

use crate::volume::{Kind, Volume, place, text};
use crate::{ALL, Home, NOBODY};

#[test]
fn users_see_the_groups_that_root_sees_and_place_in_them() {
    for kind in ALL.into_iter().chain([Kind::Ext4LargeFlex]) {
        let Some(volume) = Volume::make(kind) else { return };
        let home = Home::on(&volume);
        let seen = |user: u32| -> serde_json::Value {
            let output = home.call(user, &["groups", "--json", "."]);
            assert!(output.status.success(), "{kind:?}: {}", text(&output.stderr));
            home.call(user, &["groups", "."]).status.success().then_some(()).expect("a table");
            let mut seen: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            seen["each"].take();
            seen["emptiest"].take();
            seen
        };
        assert_eq!(seen(NOBODY), seen(0), "{kind:?}");
        let said = home.call(NOBODY, &["init", "."]);
        println!("{kind:?}: a user: {}", text(&said.stdout).trim());
        // Root examines this tree without using it: every directory is in the group of its name.
        let groups = Groups::of(&home.dir).expect("groups");
        let directory = |group: &u64| home.dir.join(format!(".place/g{group:05}"));
        let reached: Vec<u64> =
            (0..groups.count).filter(|group| directory(group).is_dir()).collect();
        for group in &reached {
            let inode = fs::metadata(directory(group)).expect("status").ino();
            assert_eq!(groups.of_inode(inode), *group, "{kind:?}");
        }
        // The kernel avoids the groups that the journal fills, and only root can request them.
        assert!(reached.len() as u64 * 4 >= groups.count * 3, "{kind:?}: {reached:?}");
        fs::write(home.dir.join("from"), vec![7; 100_000]).expect("write");
        let last = reached.last().expect("a group").to_string();
        home.succeed(NOBODY, &["cp", "--group", &last, "from", "to"]);
    }
}

/// As a killed command leaves them.
#[test]
fn settings_of_the_allocator_that_are_left_over_are_restored() {
    let Some(volume) = Volume::make(Kind::Ext4WithoutFlex) else { return };
    let home = Home::on(&volume);
    let device = rustix::fs::stat(volume.root()).expect("status").st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let disk = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).expect("a device");
    let settings = Path::new("/sys/fs/ext4").join(disk.file_name().expect("a name"));
    let values = || {
        ["inode_goal", "mb_max_linear_groups"].map(|name| {
            let text = fs::read_to_string(settings.join(name)).expect("a setting");
            text.trim().to_owned()
        })
    };
    let before = fs::read_to_string(disk.join("queue/rotational")).expect("an attribute");
    let mut defaults = values();
    home.succeed(0, &["init", "."]);
    assert_eq!(values(), defaults);
    fs::write(home.dir.join("from"), vec![7; 100_000]).expect("write");
    for rotational in ["1", "0"] {
        fs::write(disk.join("queue/rotational"), rotational).expect("set");
        defaults[1] = String::from(if rotational == "1" { "4" } else { "0" });
        for arguments in [
            &["cp", "--group", "3", "from", "to"][..],
            &["mkdir", "--group", "3", "d"],
            &["groups", "."],
            &["init", "."],
        ] {
            fs::write(settings.join("inode_goal"), "98305").expect("set");
            fs::write(settings.join("mb_max_linear_groups"), "2000033").expect("set");
            home.succeed(0, arguments);
            assert_eq!(values(), defaults, "{arguments:?}");
        }
        fs::remove_file(home.dir.join("to")).expect("remove");
        fs::remove_dir(home.dir.join("d")).expect("remove");
    }
    fs::write(disk.join("queue/rotational"), before).expect("set");
    // What another program has set stays.
    fs::write(settings.join("mb_max_linear_groups"), "7").expect("set");
    home.succeed(0, &["cp", "--group", "3", "from", "to"]);
    assert_eq!(values(), ["0", "7"]);
}

#[test]
fn an_empty_volume_is_shown_as_nearly_empty() {
    for kind in ALL.into_iter().filter(|kind| *kind != Kind::Xfs) {
        let Some(volume) = Volume::make(kind) else { return };
        let shadow = Shadow::init(volume.root()).expect("init").0;
        let groups = shadow.groups();
        let free: u64 = groups.free_bytes(volume.root()).expect("free").iter().sum();
        let status = rustix::fs::statvfs(volume.root()).expect("statvfs");
        let known = status.f_bfree * status.f_frsize;
        let apart = free.abs_diff(known) as f64 / known as f64;
        println!("{kind:?}: {} MiB free, the kernel says {}", free >> 20, known >> 20);
        assert!(apart < 0.02, "{kind:?}: {free} and {known}");
        let size = groups.count * groups.group_bytes;
        assert!(free * 100 > size * 75, "{kind:?}: {free} of {size}");
    }
}

#[test]
fn the_largest_file_is_placed_and_none_that_is_larger_by_a_piece() {
    for kind in [Kind::Ext4WithoutFlex, Kind::Ext4SmallBlocks, Kind::Xfs] {
        let Some(volume) = Volume::make(kind) else { return };
        let at = |name: &str| volume.root().join(name).to_str().expect("UTF-8").to_owned();
        assert!(place(&["init", &at("")]).status.success());
        let output = place(&["groups", "--largest", "--json", &at("")]);
        assert!(output.status.success(), "{kind:?}: {}", text(&output.stderr));
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let of = |name: &str| shown["each"][3][name].as_u64().expect("a number");
        let (largest, free) = (of("largest_bytes"), of("free_bytes"));
        println!("{kind:?}: {} of {} MiB", largest >> 20, free >> 20);
        assert!(largest <= free && largest * 10 >= free * 9, "{kind:?}: {largest} of {free}");
        // All of it is free again.
        volume.settle();
        for (bytes, fits) in [(largest + (16 << 20), false), (largest, true)] {
            fs::File::create(at("from")).and_then(|file| file.set_len(bytes)).expect("a hole");
            let output = place(&["cp", "--group", "3", &at("from"), &at("to")]);
            assert_eq!(output.status.success(), fits, "{kind:?}: {}", text(&output.stderr));
        }
    }
}

/// Blocks are smaller than pages, and the kernel exchanges only blocks at the same offset in them.
#[test]
fn files_of_small_blocks_are_packed_into_one_run() {
    let Some(volume) = Volume::make(Kind::Ext4SmallBlocks) else { return };
    let at = volume.root().join("tree");
    fs::create_dir(&at).expect("a directory");
    let contents = |number: usize| vec![number as u8; 1 + number * 977 % 20_000];
    for number in (0..200).rev() {
        fs::write(at.join(format!("f{number:03}")), contents(number)).expect("write");
    }
    volume.settle();
    let output = place(&["pack", at.to_str().expect("UTF-8")]);
    assert!(text(&output.stdout).starts_with("200 files moved"), "{}", text(&output.stdout));
    let mut end = None;
    for number in 0..200 {
        let open = fs::File::open(at.join(format!("f{number:03}"))).expect("open");
        let found = extents::of(&open, true).expect("extents");
        assert_eq!(found.len(), 1, "f{number:03}: {found:?}");
        assert!(end.is_none_or(|end| end == found[0].physical), "f{number:03}: {found:?}");
        end = Some(found[0].physical_end());
        let read = fs::read(at.join(format!("f{number:03}"))).expect("read");
        assert!(read == contents(number), "f{number:03}");
    }
    volume.check();
}
