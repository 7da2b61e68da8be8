use super::*;

#[test]
fn each_action_has_its_command_line() {
    let regroup = |path: &str, dry_run| Action::Regroup { path: path.to_owned(), dry_run };
    for (action, mounted, image) in [
        (Action::Sync, "cffs sync /mnt/tree", "cffs sync tree.cffs"),
        (
            Action::Scrub { bytes_per_second: 5 },
            "cffs scrub --rate 5 /mnt/tree",
            "cffs scrub --rate 5 tree.cffs",
        ),
        (
            Action::Fsck { contents: true },
            "cffs fsck --online --contents /mnt/tree",
            "cffs fsck -n --contents tree.cffs  # after cffs serve --stop tree.cffs",
        ),
        (
            regroup("/", true),
            "cffs regroup --dry-run /mnt/tree",
            "cffs regroup --dry-run tree.cffs  # after cffs serve --stop tree.cffs",
        ),
        (
            regroup("/a b/", false),
            "cffs regroup /mnt/tree/'a b'",
            "cffs regroup tree.cffs '/a b'  # after cffs serve --stop tree.cffs",
        ),
        (
            Action::Label("it's; rm".to_owned()),
            "cffs tune --label 'it'\\''s; rm' /mnt/tree",
            "cffs tune --label 'it'\\''s; rm' tree.cffs  # after cffs serve --stop tree.cffs",
        ),
        (
            Action::Errors(ErrorsPolicy::RemountReadOnly),
            "cffs tune --errors remount-ro /mnt/tree",
            "cffs tune --errors remount-ro tree.cffs  # after cffs serve --stop tree.cffs",
        ),
        (
            Action::Reserve { bytes: 1 << 20 },
            "cffs tune --reserve 1048576 /mnt/tree",
            "cffs tune --reserve 1048576 tree.cffs  # after cffs serve --stop tree.cffs",
        ),
        (
            Action::AddExport("/a b:ro".to_owned()),
            "cffs serve --export-add '/a b:ro' /mnt/tree",
            "cffs serve --export-add '/a b:ro' tree.cffs",
        ),
        (
            Action::RemoveExport("/srv".to_owned()),
            "cffs serve --export-remove /srv /mnt/tree",
            "cffs serve --export-remove /srv tree.cffs",
        ),
        (
            Action::KeepSnapshot("v1".to_owned()),
            "cffs sync /mnt/tree && cffs snapshot create tree.cffs@v1",
            "cffs sync tree.cffs && cffs snapshot create tree.cffs@v1",
        ),
        (
            Action::RemoveSnapshot("v1".to_owned()),
            "cffs snapshot rm tree.cffs@v1",
            "cffs snapshot rm tree.cffs@v1",
        ),
    ] {
        let of_image = Target { directory: None, image: "tree.cffs".into() };
        let of_mount = Target { directory: Some("/mnt/tree".into()), ..of_image.clone() };
        assert_eq!(action.command(&of_mount), mounted);
        assert_eq!(action.command(&of_image), image);
    }
    let target = Target { directory: Some("/mnt/my tree".into()), image: "s3://b/t".into() };
    assert_eq!(Action::Trim.command(&target), "cffs trim '/mnt/my tree'");
    let below = regroup("/a", false).command(&target);
    assert_eq!(below, "cffs regroup '/mnt/my tree'/a");
}

#[test]
fn an_action_that_panics_is_no_longer_running() {
    let once = Once::default();
    assert!(once.begin(0).is_ok());
    assert!(once.begin(0).is_err(), "a second one began");
    once.complete(&RecentLog::default(), || panic!("as the test wants it"));
    assert_eq!(once.status().stage, Stage::Stopped);
    assert!(once.status().failure.is_some());
    assert!(once.begin(0).is_ok());
}
