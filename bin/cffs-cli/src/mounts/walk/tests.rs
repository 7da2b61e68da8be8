use std::cell::Cell;
use std::os::unix::fs::symlink;

use anyhow::bail;

use super::*;

fn mounted(directory: PathBuf, device: u32) -> Mounted {
    Mounted {
        id: 0,
        source: "/image".into(),
        shown_source: "/image".into(),
        directory,
        device: (0, device),
        options: Vec::new(),
        is_read_only: false,
        user: None,
    }
}

/// A link to a mount, and a link in the mount that points outside.
#[test]
fn a_server_is_queried_only_about_names_below_its_mount() {
    let scratch = tempfile::tempdir().expect("made");
    let top = scratch.path().canonicalize().expect("there");
    for name in ["mount/dir", "other"] {
        fs::create_dir_all(top.join(name)).expect("made");
    }
    symlink("mount", top.join("link")).expect("linked");
    symlink("../../other", top.join("mount/dir/out")).expect("linked");
    let table = [mounted(top.join("mount"), 1), mounted(top.join("other"), 2)];
    let asked = Cell::new(0);
    let walked = |name: &str| {
        asked.set(0);
        let count = |_: &Mounted| {
            asked.set(asked.get() + 1);
            Ok(())
        };
        walk(&top.join(name), &table, &count).expect("walked")
    };
    let root = walked("link/");
    assert_eq!((root.root_of(), asked.get()), (Some(&table[0]), 0));
    assert_eq!(walked("link/dir").path, top.join("mount/dir"));
    assert_eq!(asked.get(), 1);
    let out = walked("link/dir/out");
    assert_eq!((out.root_of(), out.entered.len(), asked.get()), (Some(&table[1]), 2, 4));
    assert_eq!(walked("missing/../other/x").path, top.join("other/x"));
    assert_eq!(asked.get(), 1);

    let refused = |at: &Mounted| if at.device == (0, 1) { bail!("stopped") } else { Ok(()) };
    assert!(walk(&top.join("link"), &table, &refused).is_ok());
    assert!(walk(&top.join("link/dir"), &table, &refused).is_err());
    assert!(walk(&top.join("other/file"), &table, &refused).is_ok());
}
