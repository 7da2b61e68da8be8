//! Contents that programs write after `place create` and into a directory of `place mkdir`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use cffs_place::extents;
use cffs_place::groups::Groups;

use crate::ALL;
use crate::volume::{Kind, Volume, place, text};

/// How much programs write at a time, in bytes.
const WRITTEN: [usize; 4] = [1000, 16 << 10, 200 << 10, 3 << 20];

/// Whether all contents of a file are in a group.
fn is_in(groups: &Groups, path: &Path, group: u64) -> bool {
    let open = fs::File::open(path).expect("open");
    let found = extents::of(&open, true).expect("extents");
    assert!(!found.is_empty());
    found.iter().all(|extent| groups.of_place(extent.physical) == group)
}

#[test]
fn later_writes_land_in_the_group_if_they_have_room_or_the_volume_is_xfs() {
    for kind in ALL {
        let Some(volume) = Volume::make(kind) else { return };
        let at = |name: &str| volume.root().join(name).to_str().expect("UTF-8").to_owned();
        assert!(place(&["init", &at("")]).status.success());
        let groups = Groups::of(volume.root()).expect("groups");
        let write = |name: &str, bytes: usize| {
            let file = OpenOptions::new().append(true).create(true).open(name);
            file.expect("open").write_all(&vec![7; bytes]).expect("write");
        };
        let each = || {
            (0..groups.count)
                .flat_map(|group| WRITTEN.map(|bytes| (group, group.to_string(), bytes)))
        };
        // Before any file has allocated room, since that makes the kernel use the group.
        let (mut without, mut inside) = (0, 0);
        for (group, number, bytes) in each() {
            let (plain, directory) =
                (at(&format!("p{group}-{bytes}")), at(&format!("d{group}-{bytes}")));
            assert!(place(&["create", "--group", &number, &plain]).status.success());
            assert!(place(&["mkdir", "--group", &number, &directory]).status.success());
            let new = format!("{directory}/f");
            write(&plain, bytes);
            write(&new, bytes);
            without += u64::from(is_in(&groups, Path::new(&plain), group));
            inside += u64::from(is_in(&groups, Path::new(&new), group));
        }
        let (mut all, mut with_room) = (0, 0);
        for (group, number, bytes) in each() {
            let room = at(&format!("r{group}-{bytes}"));
            let size = bytes.to_string();
            let output = place(&["create", "--group", &number, "--room", &size, &room]);
            assert!(output.status.success(), "{kind:?}: {}", text(&output.stderr));
            assert!(fs::read(&room).expect("read").is_empty());
            write(&room, bytes);
            all += 1;
            with_room += u64::from(is_in(&groups, Path::new(&room), group));
        }
        let mut packed = 0;
        for (group, number, bytes) in each() {
            let directory = at(&format!("d{group}-{bytes}"));
            let output = place(&["pack", "--group", &number, "--max-size", "4M", &directory]);
            let file = format!("{directory}/f");
            if kind == Kind::Ext4Bigalloc && !is_in(&groups, Path::new(&file), group) {
                assert!(text(&output.stderr).contains("bigalloc"), "{}", text(&output.stderr));
                continue;
            }
            assert!(output.status.success(), "{kind:?}: {}", text(&output.stderr));
            packed += u64::from(is_in(&groups, Path::new(&file), group));
            assert!(fs::read(&file).expect("read") == vec![7; bytes], "{kind:?}");
        }
        println!(
            "{kind:?}: of {all}: {with_room} with room, {without} without, {inside} in a directory, \
             {packed} after pack"
        );
        assert_eq!(packed, if kind == Kind::Ext4Bigalloc { inside } else { all }, "{kind:?}");
        assert_eq!(with_room, all, "{kind:?}");
        if kind == Kind::Xfs {
            assert_eq!((without, inside), (all, all), "{kind:?}");
        }
        volume.check();
    }
}
