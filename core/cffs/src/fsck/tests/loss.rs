//! The losses that a check reports: by path, as far as it is known, and the same before and after a
//! repair.
//!
//! Once, a repair that lost 13 files said "1 problem, repaired", with the number of a sector.

use std::collections::BTreeSet;

use super::damage::CASES;
use super::image::Image;
use super::volumes::run;
use crate::fsck::{LossKind, Repair, Report};
use crate::mkfs::MkfsOptions;

/// The losses of a case of the corpus: kind and path of each, as a check and as a repair lists them.
fn losses(case: &str) -> (Image, BTreeSet<(LossKind, String)>) {
    let case = CASES.iter().find(|known| known.name == case).expect("there is such a case");
    let image = Image::new(&MkfsOptions { embed: case.embed, ..MkfsOptions::default() });
    (case.inject)(&image);
    let listed = |report: &Report| {
        let line = |loss: &crate::fsck::Loss| {
            (loss.kind, String::from_utf8_lossy(&loss.path).into_owned())
        };
        report.losses.iter().map(line).collect::<BTreeSet<_>>()
    };
    let checked = run(&image.device, Repair::No);
    let repaired = run(&image.device, Repair::Yes);
    assert_eq!(listed(&checked), listed(&repaired), "{}", case.name);
    assert!(!repaired.crashed, "{}: nothing crashed", case.name);
    assert_eq!(run(&image.device, Repair::No).losses, [], "{}: a second run", case.name);
    (image, listed(&repaired))
}

fn expected<const N: usize>(lines: [(LossKind, &str); N]) -> BTreeSet<(LossKind, String)> {
    lines.into_iter().map(|(kind, path)| (kind, path.to_owned())).collect()
}

#[test]
fn the_files_of_a_lost_sector_are_reported_by_their_directory() {
    let (image, found) = losses("sector_lost");
    let moved = format!("/lost+found/#{}", image.ino("/dir/inner"));
    assert_eq!(found, expected([(LossKind::File, "/dir/"), (LossKind::Moved, &moved)]));
}

#[test]
fn a_file_that_lost_its_contents_is_named_by_its_path() {
    for (case, kind, path) in [
        ("contents_changed", LossKind::Contents, "/dir/a"),
        ("extent_range", LossKind::Contents, "/dir/a"),
        ("extent_block", LossKind::Contents, "/tree"),
        ("stale_inode", LossKind::Contents, "/dir/a"),
        ("symlink_target", LossKind::Contents, "/symlink"),
        ("symlink_without_target", LossKind::File, "/symlink"),
        ("attribute_list", LossKind::Attributes, "/small"),
        ("attribute_block", LossKind::Attributes, "/attributes"),
        ("bad_number", LossKind::File, "/dir/"),
    ] {
        assert_eq!(losses(case).1, expected([(kind, path)]), "{case}");
    }
}

#[test]
fn names_without_an_inode_are_reported_unchanged() {
    let (_, found) = losses("table_sector_lost");
    assert_eq!(found.len(), 2, "{found:?}");
    for (kind, path) in &found {
        assert_eq!(*kind, LossKind::File);
        assert!(["/two", "/four", "/links/one", "/links/three"].contains(&path.as_str()), "{path}");
    }
}

#[test]
fn damage_that_a_repair_undoes_is_no_loss() {
    for case in ["lost_blocks", "directory_size", "name_hash_wrong", "link_count", "bitmap"] {
        assert_eq!(losses(case).1, BTreeSet::new(), "{case}");
    }
}
