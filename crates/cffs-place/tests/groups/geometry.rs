//! How volumes are divided, as root and other users see it.

use std::fs;

use cffs_place::shadow::Shadow;

use crate::volume::{Kind, Volume, text};
use crate::{ALL, Home, NOBODY};

#[test]
fn users_see_the_groups_that_root_sees_and_place_in_them() {
    for kind in ALL {
        let Some(volume) = Volume::make(kind) else { return };
        let home = Home::on(&volume);
        let seen = |user: u32| -> serde_json::Value {
            let output = home.call(user, &["groups", "--json", "."]);
            assert!(output.status.success(), "{kind:?}: {}", text(&output.stderr));
            let mut seen: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            seen["each"].take();
            seen["emptiest"].take();
            seen
        };
        assert_eq!(seen(NOBODY), seen(0), "{kind:?}");
        let said = home.call(NOBODY, &["init", "."]);
        println!("{kind:?}: a user: {}", text(&said.stdout).trim());
        // Root's view of the same tree: every directory is in the group that it is named after.
        let shadow = Shadow::find(&home.dir.join("any")).expect("the tree");
        let reached = shadow.reached();
        // The kernel avoids the groups that the journal fills, and only root can request them.
        assert!(reached.len() as u64 * 4 >= shadow.groups().count * 3, "{kind:?}: {reached:?}");
        drop(shadow);
        fs::write(home.dir.join("from"), vec![7; 100_000]).expect("write");
        let last = reached.last().expect("a group").to_string();
        home.succeed(NOBODY, &["cp", "--group", &last, "from", "to"]);
    }
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
