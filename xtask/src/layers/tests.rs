//! Small trees that break the order, and their findings.

use super::*;

/// The lines with findings in `core/cffs/src/PATH` if it contains `text`.
fn lines(path: &str, text: &str) -> Vec<usize> {
    findings(path, text).iter().map(|finding| finding.line).collect()
}

fn findings(path: &str, text: &str) -> Vec<Finding> {
    let mut tree = Tree::default();
    tree.files.insert(Path::new(CORE.source).join(path), text.to_owned());
    check_uses(&tree)
}

#[test]
fn an_upward_use_is_found_and_explained() {
    let found = findings("device/file/mod.rs", "use std::io;\n\nuse crate::vfs::Volume;\n");
    let [finding] = &found[..] else { panic!("not one: {}", found.len()) };
    let said = finding.to_string();
    let expected = "core/cffs/src/device/file/mod.rs:3: device uses crate::vfs::Volume, which is not \
                    below it: device may use units, error, clock";
    assert!(said.starts_with(expected) && !said.contains("cache"), "{said}");
}

#[test]
fn downward_uses_and_those_of_oneself_are_fine() {
    let text = "use crate::{error::Error, device::{self, BlockDevice}, cache::Cache};
                use crate::alloc::policy;
                use super::super::units;
                use super::hot_spot;
                pub(crate) fn f(x: crate::units::BlockNo) {}
                pub(super) fn g() {}";
    assert_eq!(lines("alloc/policy.rs", text), []);
}

#[test]
fn every_way_to_write_a_path_is_seen() {
    for upward in [
        "use crate::vfs;",
        "use crate::vfs::*;",
        "use crate::{units::{BlockNo, FragNo}, vfs::types::Attr};",
        "use crate::{units, self as root, vfs as facade};",
        "use super::super::vfs::Volume;",
        "use super::{super::vfs, other};",
        "use {super::super::vfs, std::io};",
        "pub use crate::r#vfs::Volume;",
        "fn f(volume: &crate::vfs::Volume) {}",
        "fn f() -> Vec<super::super::vfs::Attr> { Vec::new() }",
        "fn f() { assert!(matches!(x, crate::vfs::Kind::File)); }",
        "macro_rules! m { () => { $crate::vfs::open() } }",
        "impl From<Vec<u8>> for crate::vfs::Volume {}",
        "mod inner { use super::super::super::vfs; }",
        "use crate::vfs::{self, types};",
        "use crate as root;",
        "use crate::*;",
        "use super::super::*;",
    ] {
        assert!(!lines("cache/buffer.rs", upward).is_empty(), "{upward}");
    }
}

#[test]
fn comments_strings_and_local_names_are_no_uses() {
    let text = "//! Called by crate::vfs::Volume.\n\
                /// See [`crate::vfs`].\n\
                // use crate::vfs;\n\
                const A: &str = \"crate::vfs\";\n\
                fn f(vfs: u32) -> u32 { let inode = vfs; inode }\n\
                mod vfs { pub fn g() {} }\n\
                fn h() { vfs::g(); self::vfs::g() }\n";
    assert_eq!(lines("cache/buffer.rs", text), []);
}

#[test]
fn lines_are_those_of_the_item_that_is_used() {
    let text = "use crate::{\n    units,\n    vfs,\n    inode::{\n        Inode,\n    },\n};";
    assert_eq!(lines("cache/mod.rs", text), [3, 5]);
}

#[test]
fn every_pair_in_the_wrong_order_is_refused() {
    let order = ["units", "device", "cache", "alloc", "inode", "namespace", "vfs", "files"];
    for (place, user) in order.iter().enumerate() {
        for (other_place, used) in order.iter().enumerate() {
            let found = lines(&format!("{user}.rs"), &format!("use crate::{used}::X;"));
            assert_eq!(found.is_empty(), other_place <= place, "{user} uses {used}");
        }
    }
}

#[test]
fn the_base_uses_itself_in_any_order() {
    assert_eq!(lines("units.rs", "use crate::clock::Clock; use crate::error::Error;"), []);
    assert_eq!(lines("clock.rs", "use crate::units::BlockNo; use crate::error::Error;"), []);
}

#[test]
fn codecs_do_not_see_a_device() {
    assert_eq!(lines("format/superblock.rs", "use crate::device::BlockDevice;"), [1]);
}

#[test]
fn making_and_checking_use_only_the_format() {
    for user in ["mkfs/mod.rs", "fsck/walk.rs"] {
        assert_eq!(lines(user, "use crate::device::BlockDevice; use crate::format::layout;"), []);
        for used in ["cache", "alloc", "inode", "namespace", "vfs"] {
            assert_eq!(lines(user, &format!("use crate::{used}::X;")), [1], "{user} uses {used}");
        }
    }
    assert_eq!(lines("mkfs/mod.rs", "use crate::fsck::check;"), [1]);
    assert_eq!(lines("vfs/mod.rs", "use crate::{fsck, mkfs};"), []);
}

#[test]
fn the_root_and_tests_may_use_everything() {
    let text = "use crate::vfs::Volume;";
    assert_eq!(lines("lib.rs", text), []);
    assert_eq!(lines("fsck/tests.rs", text), []);
    assert_eq!(lines("fsck/tests/corpus.rs", text), []);
    assert_eq!(lines("fsck/contests.rs", text), [1]);
}

#[test]
fn names_that_the_root_passes_on_hide_their_layer() {
    let found = findings("cache/mod.rs", "use crate::Volume;");
    assert!(found[0].message.contains("name the module"), "{}", found[0]);
}

#[test]
fn a_module_without_a_place_is_refused() {
    let found = findings("utils/mod.rs", "");
    assert!(found[0].message.contains("no place in the order"), "{}", found[0]);
}

#[test]
fn a_file_that_is_not_rust_is_reported_and_not_skipped() {
    let found = findings("cache/mod.rs", "fn f() {\n    (]\n}");
    assert!(found[0].message.contains("not Rust"), "{}", found[0]);
}

#[test]
fn the_tables_name_only_what_exists() {
    let mut tree = Tree::default();
    for order in ORDERS {
        let modules = order.base.iter().chain(order.layers.iter().map(|(module, _)| module));
        for module in modules.filter(|module| **module != "cache") {
            tree.files.insert(Path::new(order.source).join(module).join("mod.rs"), String::new());
        }
    }
    let found = check_tables(&tree);
    assert_eq!(found.len(), 1);
    assert!(found[0].message.contains("no module cache"), "{}", found[0]);
}

#[test]
fn front_ends_use_what_they_share_and_not_each_other() {
    let found = |path: &str, text: &str| {
        let mut tree = Tree::default();
        tree.files.insert(Path::new(SERVE.source).join(path), text.to_owned());
        check_uses(&tree).len()
    };
    assert_eq!(
        found("fuse/closing.rs", "use crate::served::Served; use crate::shared::Companion;"),
        0
    );
    assert_eq!(found("served/mod.rs", "use crate::fuse::requests::Requests;"), 1);
    assert_eq!(found("describe.rs", "use crate::served::Identity;"), 1);
    assert_eq!(found("nfs/mod.rs", "use crate::fuse::KernelCaches;"), 1);
    assert_eq!(found("fuse/mod.rs", "use crate::nfs::Server;"), 1);
}
