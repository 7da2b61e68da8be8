//! C programs, linked with the static and with the shared library.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use linking::{compile, libraries, run};

#[path = "../../../place/place-c/tests/linking/mod.rs"]
mod linking;

/// The program compiled from a source, linked with each of the libraries.
fn programs(source: &str, scratch: &Path) -> [PathBuf; 2] {
    let libraries = libraries("cffs-c");
    ["libcffs.a", "libcffs.so"].map(|library| {
        let program = scratch.join(library.replace('.', "-"));
        compile(source, &libraries.join(library), &program);
        program
    })
}

#[test]
fn the_example_lists_what_it_has_written() {
    let scratch = tempfile::tempdir().expect("a directory");
    for program in programs("examples/cffs.c", scratch.path()) {
        let image = scratch.path().join("image");
        let said = run(Command::new(&program).arg(&image)).stdout;
        let said = String::from_utf8(said).expect("text");
        assert_eq!(said, "15 bytes in\none, 5 bytes\ntwo, 5 bytes\nthree, 5 bytes\n");
        let again = Command::new(&program).arg(&image).output().expect("it runs");
        let said = String::from_utf8_lossy(&again.stderr);
        assert!(!again.status.success() && said.starts_with("cffs_mkfs: "), "{said}");
        std::fs::remove_file(&image).expect("removed");
    }
}

#[test]
fn the_lines_in_the_man_page_write_a_file() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/man/libcffs.3"));
    let page = page.expect("a page");
    let (_, rest) = page.split_once(".SH EXAMPLES\n.nf\n").expect("examples");
    let (lines, _) = rest.split_once(".fi\n").expect("their end");
    let scratch = tempfile::tempdir().expect("a directory");
    let source = scratch.path().join("lines.c");
    let head = "#include <cffs.h>\n#include <stdio.h>\nint main(void)\n{\n";
    let make = "cffs_mkfs(\"tree.cffs\", 64 << 20, NULL);\n";
    let lines = lines.replace("\\e", "\\");
    std::fs::write(&source, format!("{head}{make}{lines}}}\n")).expect("written");
    let program = scratch.path().join("lines");
    compile(source.to_str().expect("text"), &libraries("cffs-c").join("libcffs.so"), &program);
    run(Command::new(&program).current_dir(scratch.path()));
    let image = scratch.path().join("tree.cffs");
    let files = cffs::files::Files::open_image(&image, Default::default()).expect("a volume");
    assert_eq!(files.read("/hello").expect("read"), b"world");
}

#[test]
fn every_function_does_what_the_header_says() {
    let scratch = tempfile::tempdir().expect("a directory");
    for program in programs("tests/library.c", scratch.path()) {
        run(Command::new(&program).arg(scratch.path().join("image")));
        std::fs::remove_file(scratch.path().join("image")).expect("removed");
    }
}

/// Checks for invalid memory accesses and leaks.
#[test]
fn every_function_accesses_only_valid_memory() {
    let scratch = tempfile::tempdir().expect("a directory");
    let [_, program] = programs("tests/library.c", scratch.path());
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
    // valgrind does not know which data the kernel returns for loop devices.
    valgrind.args(["--errors-for-leak-kinds=definite,indirect", "--undef-value-errors=no"]);
    run(valgrind.arg(program).arg(scratch.path().join("image")));
}

#[test]
fn a_mounted_volume_is_used_through_its_server() {
    let scratch = tempfile::tempdir().expect("a directory");
    let cffs = libraries("cffs-cli").join("cffs");
    let (image, mountpoint) = (scratch.path().join("image"), scratch.path().join("mnt"));
    std::fs::create_dir(&mountpoint).expect("made");
    run(Command::new(&cffs).args(["mkfs", "-q", "--size", "64M"]).arg(&image));
    let is_root = std::fs::metadata("/proc/self").expect("there").uid() == 0;
    if !Path::new("/dev/fuse").exists() || !is_root {
        return;
    }
    run(Command::new(&cffs).arg("mount").args([&image, &mountpoint]));
    for program in programs("tests/attached.c", scratch.path()) {
        std::fs::write(mountpoint.join("by kernel"), "kernel").expect("written");
        let ran = Command::new(&program).arg(&mountpoint).output();
        let left = std::fs::read(mountpoint.join("d/e/two"));
        let _ = std::fs::remove_dir_all(mountpoint.join("d"));
        let ran = ran.expect("started");
        if !ran.status.success() {
            run(Command::new(&cffs).arg("umount").arg(&mountpoint));
        }
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(left.expect("there"), b"contents");
    }
    run(Command::new(&cffs).arg("umount").arg(&mountpoint));
}
