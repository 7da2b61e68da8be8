//! Programs that write to files while these are moved.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::volume::{Kind, Volume, place, text};

/// Counts up in place, in the last bytes of a file, as long as it has its name. Returns the last number.
fn count(at: &Path, offset: u64, end: &AtomicBool) -> u64 {
    let mut number = 0;
    while !end.load(Ordering::Relaxed) {
        let Ok(file) = OpenOptions::new().write(true).open(at) else { break };
        if file.write_all_at(&u64::to_le_bytes(number + 1), offset).is_ok() && at.exists() {
            number += 1;
        }
    }
    number
}

#[test]
fn a_move_fails_and_removes_nothing_if_a_program_writes_meanwhile() {
    const BYTES: u64 = 40 << 20;
    for (kind, from, file) in [
        (Kind::Ext4, "alone", "alone"),
        (Kind::Ext4, "tree", "tree/in/file"),
        (Kind::Xfs, "alone", "alone"),
        (Kind::Xfs, "tree", "tree/in/file"),
    ] {
        let Some(volume) = Volume::make(kind) else { return };
        let at = |name: &str| volume.root().join(name);
        let shown = |name: &str| at(name).to_str().expect("UTF-8").to_owned();
        assert!(place(&["init", &shown("")]).status.success());
        fs::create_dir_all(at(file).parent().expect("a directory")).expect("directories");
        fs::write(at(file), vec![0; BYTES as usize]).expect("write");
        let (end, offset) = (AtomicBool::new(false), BYTES - 8);
        let (output, last) = std::thread::scope(|scope| {
            let counter = scope.spawn(|| count(&at(file), offset, &end));
            let output = place(&["mv", "--group", "1", &shown(from), &shown("moved")]);
            end.store(true, Ordering::Relaxed);
            (output, counter.join().expect("the counter"))
        });
        assert!(last > 0, "{kind:?}");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{kind:?}: {said}");
        assert!(said.contains("changed meanwhile"), "{kind:?}: {said}");
        assert!(!at("moved").exists(), "{kind:?}");
        let mut number = [0; 8];
        let open = File::open(at(file)).expect("the original");
        open.read_exact_at(&mut number, offset).expect("read");
        assert_eq!(u64::from_le_bytes(number), last, "{kind:?}");
        // Without the writer, the move succeeds.
        let output = place(&["mv", "--group", "1", &shown(from), &shown("later")]);
        assert!(output.status.success(), "{kind:?}: {}", text(&output.stderr));
        assert!(!at(from).exists(), "{kind:?}");
    }
}
