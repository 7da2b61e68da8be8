//! The C example, linked with either library, on an XFS volume.

use std::path::PathBuf;
use std::process::Command;

use linking::{compile, libraries, run};

mod linking;

/// An XFS volume that is unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn the_example_places_a_file_by_either_library() {
    let scratch = tempfile::tempdir().expect("a directory");
    let at = scratch.path().join("mnt");
    let libraries = libraries("place-c");
    let programs = ["libplace.a", "libplace.so"].map(|library| {
        let program = scratch.path().join(library.replace('.', "-"));
        compile("examples/place.c", &libraries.join(library), &program);
        program
    });
    for program in &programs {
        let output =
            Command::new(program).args(["/proc", "/etc/passwd"]).output().expect("the example");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("place_init: /proc: ") && !output.status.success(), "{said}");
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: a volume has to be mounted, which needs root");
        return;
    }
    let image = scratch.path().join("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(512 << 20)).expect("an image");
    run(Command::new("mkfs.xfs").arg("-q").arg(&image));
    std::fs::create_dir(&at).expect("a directory");
    run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
    let mounted = Mounted(at.clone());
    for (number, program) in programs.iter().enumerate() {
        let directory = at.join(number.to_string());
        std::fs::create_dir(&directory).expect("a directory");
        let output = run(Command::new(program).arg(&directory).arg("/etc/passwd"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.ends_with("of 4, as asked for: yes\n"), "{said}");
        let copy = std::fs::read(directory.join("placed/copy")).expect("the copy");
        assert!(copy == std::fs::read("/etc/passwd").expect("the original"));
        assert!(!directory.join("unfinished").exists());
        assert!(directory.join("placed/journal").exists());
    }
    drop(mounted);
}
