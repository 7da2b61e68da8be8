//! Error messages.

use std::path::PathBuf;

use anyhow::Context;

use super::*;

fn missing() -> OpenError {
    OpenError::Io { path: PathBuf::from("tree.cffs"), source: io::ErrorKind::NotFound.into() }
}

#[test]
fn a_repeated_cause_is_reported_once() {
    let expected = "tree.cffs: entity not found; cffs mkfs makes an image";
    let error = anyhow::Error::new(missing());
    assert_eq!(message(Kind::Ordinary, "ls", &error), expected);
    let error = Err::<(), _>(missing()).context("tree.cffs").unwrap_err();
    assert_eq!(message(Kind::Ordinary, "ls", &error), expected);
}

/// The claim of a program that ended, and a volume that cannot be read, have a remedy of their own.
#[test]
fn a_deletion_that_is_refused_names_its_options() {
    let url = || String::from("s3://bucket/tree");
    let said = |error: Store| message(Kind::Ordinary, "destroy", &anyhow::Error::new(error));
    let claimed =
        |has_ended| said(Store::Claimed { term: 1, by: None, has_ended, is_staging: false });
    assert!(claimed(false).ends_with("if it has ended: --take-over"), "{}", claimed(false));
    assert!(claimed(true).ends_with("; to take it over: --take-over"), "{}", claimed(true));
    let locked = said(Store::NeedsSecret { url: url() });
    assert!(locked.ends_with("to delete the volume nevertheless: --force"), "{locked}");
    let begun = said(Store::Deleting { url: url() });
    assert!(begun.ends_with("cffs destroy s3://bucket/tree"), "{begun}");
}

#[test]
fn a_chain_is_printed_from_the_place_to_the_cause() {
    let error = Err::<(), _>(Error::NoSpace).context("/a/b").context("import").unwrap_err();
    assert_eq!(message(Kind::Ordinary, "ls", &error), "import: /a/b: no space left on the volume");
}

#[test]
fn fsck_does_not_advise_to_run_fsck() {
    let lost = Error::from(Corruption::SuperblockMagic { offset: 0 });
    let error = Err::<(), _>(lost).context("disk").unwrap_err();
    let said = message(Kind::Fsck, "fsck", &error);
    let place = "disk: no C-FFS superblock at byte 0; ";
    assert_eq!(said, format!("{place}no copy of one was found either: this is not a C-FFS volume"));
    assert!(message(Kind::Mount, "mount", &error).ends_with("(cffs fsck looks for a copy)"));
}

/// Regression: the library's text ends with advice and its source repeats the text, so the place was printed
/// twice, with the advice in between.
#[test]
fn corruption_is_printed_once_and_the_advice_comes_last() {
    let bad = Error::from(Corruption::Contents { ino: cffs::units::InodeNo(7) });
    let error = Err::<(), _>(bad).context("/a").unwrap_err();
    let said = message(Kind::Ordinary, "cat", &error);
    let fact = "/a: inode 7: contents do not match their checksum";
    assert_eq!(said, format!("{fact}; run cffs fsck -f on the volume"));
}

#[test]
fn every_code_in_use_is_documented() {
    for kind in [Kind::Ordinary, Kind::Mount, Kind::Fsck] {
        for code in [ExitCode::SUCCESS, kind.usage_code(), kind.failure_code()] {
            let documented =
                kind.statuses().iter().any(|(known, _)| ExitCode::from(*known) == code);
            assert!(documented, "{kind:?}: {code:?}");
        }
    }
}
