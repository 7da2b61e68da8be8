use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cffs::vfs::types::{AtimeMode, ErrorsPolicy, JournalMode};

use super::table::TABLE;
use super::{Flags, MountOptions};

fn parsed(list: &str) -> anyhow::Result<MountOptions> {
    let mut options = MountOptions::for_user(true);
    options.apply(&[String::from(list)], false)?;
    Ok(options)
}

#[test]
fn own_options_are_accepted() {
    let options = parsed("ro,noatime,cache=1G,commit=30,clean=20,clean_share=3,nosuid")
        .expect("all are known");
    assert!(options.open.read_only);
    assert_eq!(options.open.atime, AtimeMode::Never);
    assert_eq!(options.open.cache_bytes, 1 << 30);
    assert_eq!(options.open.epoch_interval.as_secs(), 30);
    assert_eq!(options.open.clean_after.as_secs(), 20);
    assert_eq!(options.open.clean_share_percent, 3);
    let flags = Flags { read_only: Some(true), suid: Some(false), ..Flags::default() };
    assert_eq!(options.flags, flags, "what was not asked for stays open");
    assert_eq!(options.open.errors, ErrorsPolicy::Default);
    let journal = |text| parsed(text).expect("known").open.journal;
    assert_eq!(options.open.journal, JournalMode::On);
    assert_eq!(
        [journal("journal=off"), journal("journal=none")],
        [JournalMode::Off, JournalMode::None]
    );
    let journal_device = parsed("journal-device=/dev/sdb1").expect("known").journal_device;
    assert_eq!(journal_device.as_deref(), Some(std::path::Path::new("/dev/sdb1")));
    let refuse = parsed("errors=remount-ro").expect("known");
    assert_eq!(refuse.open.errors, ErrorsPolicy::RemountReadOnly);
    let go_on = parsed("errors=remount-ro,errors=continue").expect("known");
    assert_eq!(go_on.open.errors, ErrorsPolicy::Continue);
    let seconds =
        |list: &str| parsed(list).expect("known").regroup_after.map(|time| time.as_secs());
    assert_eq!(
        ["regroup=idle", "regroup=7", "regroup=never", "rw"].map(seconds),
        [Some(60), Some(7), None, None]
    );
    let of_use = |list: &str| {
        let options = parsed(list).expect("known");
        (options.open.observe, options.kept()["regroup"].clone())
    };
    assert_eq!(of_use("regroup=use"), (true, String::from("regroup=use:60")));
    assert_eq!(of_use("regroup=use:7"), (true, String::from("regroup=use:7")));
    assert_eq!(of_use("regroup=use,regroup=idle"), (false, String::from("regroup=60")));
    let never = parsed("clean=never").expect("known");
    assert_eq!(never.open.clean_after, std::time::Duration::MAX);
}

/// Regression: `regroup=foo` was "a number of seconds", and `soft` "needs a value".
#[test]
fn a_wrong_value_is_answered_with_the_valid_ones() {
    for (list, said) in [
        (
            "regroup=often",
            "idle, use, SECONDS, use:SECONDS, never with 1 to 3600 SECONDS, not 'often'",
        ),
        ("regroup=use:often", "never with 1 to 3600 SECONDS, not 'often'"),
        ("clean=0", "SECONDS, never with 1 to 3600 SECONDS, not '0'"),
        ("follow=soon", "a number of seconds from 1 to 3600, not 'soon'"),
        ("stall=1h", "a number of seconds from 1 to 3600, not '1h'"),
        ("errors=panic", "'continue' or 'remount-ro', not 'panic'"),
        ("soft", "needs a value: soft=SECONDS"),
        ("cache=big", "'big' is not a size; write it in bytes, or with a unit: 64k"),
    ] {
        let refused = parsed(list).expect_err(list).to_string();
        assert!(refused.contains(said), "{refused}");
    }
}

/// Regression: a path that is not UTF-8 was refused, as was a cache's directory with a comma.
#[test]
fn paths_are_bytes() {
    let path = Path::new(OsStr::from_bytes(b"/var/\xff"));
    let mut options = MountOptions::for_user(true);
    let list = OsStr::from_bytes(b"logfile=/var/\xff,staging=/var/\xff,cache-dir=/var/\xff=1G");
    options.apply(&[list], false).expect("known");
    assert_eq!(options.logfile.as_deref(), Some(path));
    assert_eq!(options.staging.as_deref(), Some(path));
    assert_eq!(options.cache_dir, Some((path.to_owned(), 1 << 30)));
    assert_eq!(options.kept()["logfile"], r"logfile=/var/\xff");
    options.set_cache_dir(OsStr::new("/a,b=1G")).expect("a directory and a size");
    assert_eq!(options.cache_dir, Some((PathBuf::from("/a,b"), 1 << 30)));
    for (list, named) in [(&b"\xff"[..], r"'\xff'"), (b"cache=\xff", "'cache' cannot be")] {
        let refused = options.apply(&[OsStr::from_bytes(list)], false).expect_err("unknown");
        assert!(refused.to_string().contains(named), "{refused}");
    }
}

#[test]
fn later_options_override_earlier_ones() {
    let options = parsed("ro,rw,user,exec").expect("all are known");
    assert!(!options.open.read_only);
    let flags = options.flags;
    assert_eq!((flags.exec, flags.suid, flags.dev), (Some(true), Some(false), Some(false)));
    assert_eq!(flags.read_only, Some(false));
}

#[test]
fn a_block_device_is_for_root_and_can_be_disabled() {
    assert!(parsed("fuseblk=auto").expect("known").block_device);
    assert!(!parsed("fuseblk=no").expect("known").block_device);
    let mut options = MountOptions::for_user(false);
    options.apply(&[String::from("fuseblk=auto")], false).expect("known");
    assert!(!options.block_device);
}

/// Regression: `suid,dev` of an ordinary user was silently dropped, since fusermount3 grants
/// neither.
#[test]
fn options_for_root_are_refused_for_others() {
    for name in ["suid", "dev", "nosymfollow"] {
        parsed(name).expect("root may");
        let mut options = MountOptions::for_user(false);
        let refused = options.apply(&[name.to_owned()], true).expect_err(name).to_string();
        assert!(refused.contains(&format!("'{name}' is for root")), "{refused}");
    }
    let mut options = MountOptions::for_user(false);
    options.apply(&[String::from("nosuid,nodev,symfollow")], false).expect("as it is anyhow");
}

/// Regression: `cache=1`, one byte, was accepted.
#[test]
fn memory_has_a_minimum() {
    for (list, min) in [("cache=1", "1 MiB"), ("cache=512k", "1 MiB"), ("dirty=16", "64 KiB")] {
        let refused = parsed(list).expect_err(list).to_string();
        assert!(refused.contains(&format!("{min} or more")), "{refused}");
    }
    assert_eq!(parsed("cache=1M").expect("enough").open.cache_bytes, 1 << 20);
}

#[test]
fn options_for_other_programs_are_ignored() {
    parsed("defaults,noauto,_netdev,nofail,x-systemd.automount,comment=mine").expect("ignored");
}

#[test]
fn errors_name_unknown_options_and_values() {
    for (list, named) in [
        ("ro,bogus", "'bogus'"),
        ("cache=much", "'much'"),
        ("cache", "'cache'"),
        ("commit=0", "'0'"),
        ("commit=0.0009", "'0.0009'"),
        ("commit=nan", "'nan'"),
        ("clean=often", "'often'"),
        ("clean_share=101", "'101'"),
        ("transport=pigeon", "'pigeon'"),
        ("errors=panic", "'panic'"),
        ("journal=maybe", "'maybe'"),
        ("errors", "'errors'"),
        ("fuseblk=yes", "'yes'"),
        ("stall=0", "'0'"),
        ("soft", "'soft'"),
        ("soft=ever", "'ever'"),
    ] {
        let error = parsed(list).expect_err(list).to_string();
        assert!(error.contains(named), "{error}");
    }
    let mut options = MountOptions::for_user(false);
    options.apply(&[String::from("bogus")], true).expect("sloppy");
}

/// Regression: `ro=0` mounted read-only, and `discard=no` discarded.
#[test]
fn a_flag_takes_no_value() {
    for option in TABLE.iter().filter(|option| !option.term.contains('=')) {
        for name in option.names.iter().filter(|name| **name != "user") {
            let refused = parsed(&format!("{name}=no")).expect_err(name).to_string();
            assert!(refused.contains(&format!("'{name}' takes no value, but 'no'")), "{refused}");
            assert!(parsed(&format!("{name}=")).is_err(), "{name}");
        }
    }
    // mount(8) passes these on.
    let options = parsed("user=mary,ro=recursive,nosuid=vfs,noatime=fs").expect("of mount(8)");
    assert_eq!((options.flags.exec, options.flags.read_only), (Some(false), Some(true)));
    parsed("sync=recursive").expect_err("no flag of a mount");
}

#[test]
fn staging_is_for_a_store_that_is_written() {
    let mut options = parsed("staging=/var/waits").expect("known");
    assert_eq!(options.kept()["staging"], "staging=/var/waits");
    options.settle(true).expect("in a store");
    options.settle(false).expect_err("in an image");
    options.open.read_only = true;
    let refused = options.settle(true).expect_err("only read").to_string();
    assert!(refused.contains("that is written"), "{refused}");
    assert!(parsed("staging").expect_err("no directory").to_string().contains("needs a value"));
    assert_eq!(parsed("ro").expect("known").kept()["staging"], "no staging");
}

#[test]
fn a_cache_on_a_disk_is_for_a_store() {
    let mut options = parsed("cache-dir=/var/a=b=1G,noatime").expect("known");
    assert_eq!(options.cache_dir, Some((PathBuf::from("/var/a=b"), 1 << 30)));
    assert_eq!(options.kept()["cache-dir"], "cache-dir=/var/a=b=1G");
    options.settle(true).expect("in a store");
    let refused = options.settle(false).expect_err("in an image").to_string();
    assert!(refused.contains("given by its URL"), "{refused}");
    for (list, named) in [
        ("cache-dir", "needs a value"),
        ("cache-dir=/var", "DIR=SIZE, not '/var'"),
        ("cache-dir==1G", "DIR=SIZE"),
        ("cache-dir=/var=much", "'much'"),
    ] {
        let refused = parsed(list).expect_err(list).to_string();
        assert!(refused.contains(named), "{refused}");
    }
}

#[test]
fn a_followed_volume_is_read_only_and_in_a_store() {
    let follow = |list: &str, is_in_store| {
        let mut options = parsed(list)?;
        options.settle(is_in_store)?;
        Ok((options.follow.map(|time| time.as_secs()), options.open.read_only))
    };
    let settled = |list| follow(list, true).expect("they go together");
    assert_eq!(settled("follow"), (Some(10), true));
    assert_eq!(settled("follow=3,ro"), (Some(3), true));
    assert_eq!(settled("noatime"), (None, false));
    assert!(follow("noatime", false).is_ok());
    let refused = |list, is_in_store| -> String {
        let outcome: anyhow::Result<(Option<u64>, bool)> = follow(list, is_in_store);
        outcome.expect_err("they do not").to_string()
    };
    assert!(refused("follow", false).contains("given by its URL"));
    assert!(refused("follow,rw", true).contains("leave out 'rw'"));
    assert!(refused("follow=soon", true).contains("a number of seconds"));
}

#[test]
fn reading_a_store_does_not_cause_writes() {
    let settled = |list: &str, is_in_store| {
        let mut options = parsed(list).expect("known");
        options.settle(is_in_store).expect("they go together");
        options.open.atime
    };
    assert_eq!(settled("", true), AtimeMode::Never);
    assert_eq!(settled("", false), AtimeMode::Relative);
    for is_in_store in [false, true] {
        assert_eq!(settled("relatime", is_in_store), AtimeMode::Relative);
        assert_eq!(settled("strictatime", is_in_store), AtimeMode::Strict);
        assert_eq!(settled("noatime", is_in_store), AtimeMode::Never);
    }
}

#[test]
fn a_name_belongs_to_one_option() {
    let mut seen = BTreeSet::new();
    for option in TABLE {
        for name in option.names {
            assert!(seen.insert(name), "{name}");
        }
        // The help shows each option in its spelling.
        for term in option.term.split(", ") {
            let term = term.trim_start_matches("[no]").split(['=', '[']).next();
            assert!(term.is_some_and(|term| option.names.contains(&term)), "{}", option.term);
        }
    }
}
