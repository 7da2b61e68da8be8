//! The checks on this workspace, and the reading of trees.

use std::fs;
use std::path::Path;

use super::*;

#[test]
fn the_source_tree_is_in_order() {
    let findings = check_workspace().unwrap();
    let report: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "\n{}\n", report.join("\n"));
}

/// If the tree were not found, no check would find a fault.
#[test]
fn the_workspace_is_really_read() {
    let tree = Tree::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    for path in ["Cargo.toml", "Makefile", ".ci/run", "core/cffs/src/units.rs", "CHANGELOG.md"] {
        assert!(tree.files.contains_key(Path::new(path)), "{path}");
    }
    assert!(!tree.files.keys().any(|path| path.starts_with("target")));
}

#[test]
fn built_files_and_files_that_are_not_text_are_no_sources() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for (path, contents) in [
        ("a.rs", b"x".as_slice()),
        ("deep/down/b.md", b"x"),
        ("Makefile", b"x"),
        ("picture.png", b"x"),
        ("binary", b"\xff\xfe"),
        ("target/a.rs", b"x"),
        ("crates/c/target/a.rs", b"x"),
        (".git/config", b"x"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    let tree = Tree::read(root).unwrap();
    let paths: Vec<&str> = tree.files.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(paths, ["Makefile", "a.rs", "deep/down/b.md"]);
}
