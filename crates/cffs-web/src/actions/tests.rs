use super::*;

#[test]
fn each_action_has_its_command_line() {
    let regroup = |path: &str, dry_run| Action::Regroup { path: path.to_owned(), dry_run };
    for (action, mounted, image) in [
        (Action::Sync, "cffs sync DIR", "cffs sync IMAGE"),
        (
            Action::Scrub { bytes_per_second: 5 },
            "cffs scrub --rate 5 DIR",
            "cffs scrub --rate 5 IMAGE",
        ),
        (
            Action::Fsck { contents: true },
            "cffs fsck --online --contents DIR",
            "cffs fsck -n --contents IMAGE  # after cffs serve --stop IMAGE",
        ),
        (
            regroup("/", true),
            "cffs regroup --dry-run DIR",
            "cffs regroup --dry-run IMAGE  # after cffs serve --stop IMAGE",
        ),
        (
            regroup("/a b/", false),
            "cffs regroup DIR/'a b'",
            "cffs regroup IMAGE '/a b'  # after cffs serve --stop IMAGE",
        ),
        (
            Action::Label("it's; rm".to_owned()),
            "cffs tune --label 'it'\\''s; rm' DIR",
            "cffs tune --label 'it'\\''s; rm' IMAGE  # after cffs serve --stop IMAGE",
        ),
        (
            Action::Errors(Errors::RemountRo),
            "cffs tune --errors remount-ro DIR",
            "cffs tune --errors remount-ro IMAGE  # after cffs serve --stop IMAGE",
        ),
        (
            Action::Reserve { bytes: 1 << 20 },
            "cffs tune --reserve 1048576 DIR",
            "cffs tune --reserve 1048576 IMAGE  # after cffs serve --stop IMAGE",
        ),
        (
            Action::AddExport("/a b:ro".to_owned()),
            "cffs serve --export-add '/a b:ro' DIR",
            "cffs serve --export-add '/a b:ro' IMAGE",
        ),
        (
            Action::RemoveExport("/srv".to_owned()),
            "cffs serve --export-remove /srv DIR",
            "cffs serve --export-remove /srv IMAGE",
        ),
        (
            Action::KeepSnapshot("v1".to_owned()),
            "cffs sync DIR && cffs snapshot create URL@v1",
            "cffs sync IMAGE && cffs snapshot create URL@v1",
        ),
        (
            Action::RemoveSnapshot("v1".to_owned()),
            "cffs snapshot rm URL@v1",
            "cffs snapshot rm URL@v1",
        ),
    ] {
        assert_eq!(action.command(Target::Mounted), mounted);
        assert_eq!(action.command(Target::Image), image);
    }
}

#[test]
fn an_action_that_panics_has_ended() {
    let once = Once::default();
    assert!(once.begin(0).is_ok());
    assert!(once.begin(0).is_err(), "a second one began");
    once.complete(&RecentLog::default(), || panic!("as the test wants it"));
    assert_eq!(once.status().stage, Stage::Stopped);
    assert!(once.status().failure.is_some());
    assert!(once.begin(0).is_ok());
}
