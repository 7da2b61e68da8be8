//! `cffs layout` on images and on mounted volumes.

use std::fs;
use std::path::Path;

use crate::harness::{Scratch, can_mount, fail, succeed};
use serde_json::Value;

/// More directories than fit into one piece of a server's answer.
const DIRECTORIES: usize = 400;

fn layout(scratch: &Scratch, target: &Path) -> Value {
    let printed = succeed(scratch.cffs(["layout", "--json"]).arg(target));
    serde_json::from_str(&printed).expect("it is JSON")
}

/// Makes directories with three files each.
fn fill(tree: &Path) {
    for number in 0..DIRECTORIES {
        let dir = tree.join(format!("directory-{number:03}"));
        fs::create_dir_all(&dir).expect("made");
        for file in 0..3 {
            fs::write(dir.join(format!("f{file}")), vec![file; 5000]).expect("written");
        }
    }
}

#[test]
fn an_image_is_shown_as_a_table_as_json_and_as_a_picture() {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fill(&source);
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source).arg("/in"));
    let report = layout(&scratch, &scratch.image());
    let directories = report["directories"].as_array().expect("a list");
    assert_eq!(directories.len(), DIRECTORIES + 2);
    let files: u64 = directories.iter().filter_map(|dir| dir["files"].as_u64()).sum();
    assert_eq!(files, 3 * DIRECTORIES as u64);

    let picture = scratch.path().join("picture.svg");
    let part = ["layout", "--svg"];
    let table =
        succeed(scratch.cffs(part).arg(&picture).arg(scratch.image()).arg("/in/directory-007"));
    assert!(table.contains("1 directory, 3 files in 1 place"), "{table}");
    let drawn = fs::read_to_string(&picture).expect("drawn");
    assert!(drawn.starts_with("<svg ") && drawn.contains("3 files in 1 place"), "{drawn}");

    let said = fail(1, scratch.cffs(["layout"]).arg(scratch.image()).arg("/in/missing"));
    assert!(said.contains("/in/missing"), "{said}");
    let said = fail(1, scratch.cffs(["layout"]).arg(scratch.image()).arg("/in/directory-007/f1"));
    assert!(said.to_lowercase().contains("directory"), "{said}");
}

#[test]
fn a_mounted_volume_is_examined_while_it_is_used() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("rw");
    let tree = scratch.mountpoint().join("in");
    fill(&tree);
    let mounted = layout(&scratch, &tree);
    fs::write(tree.join("after"), b"the volume goes on").expect("written");
    fs::remove_file(tree.join("after")).expect("removed");
    let below = succeed(scratch.cffs(["layout", "--json"]).arg(scratch.mountpoint()).arg("in"));
    assert_eq!(serde_json::from_str::<Value>(&below).expect("it is JSON"), mounted);
    scratch.umount();
    let image = succeed(scratch.cffs(["layout", "--json"]).arg(scratch.image()).arg("/in"));
    let image: Value = serde_json::from_str(&image).expect("it is JSON");
    assert!(mounted.to_string().len() > 64 << 10, "the answer comes in pieces");
    for key in ["requests", "read_bytes"] {
        assert_eq!(mounted[key], image[key], "{key}");
    }
    let said = fail(1, scratch.cffs(["layout"]).arg(scratch.mountpoint()));
    assert!(said.contains("not a C-FFS volume that is mounted"), "{said}");
}
