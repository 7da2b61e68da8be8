//! Exit codes and messages of the commands that copy: what lost something never ends with 0.

mod harness;

use std::fs::{self, File};
use std::process::{Command, Stdio};

use harness::{Scratch, fail, succeed};

fn with_tree() -> Scratch {
    let scratch = Scratch::with_image();
    let source = scratch.path().join("source");
    fs::create_dir(&source).expect("made");
    for index in 0..20 {
        fs::write(source.join(format!("f{index}")), vec![index; 100_000]).expect("written");
    }
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&source));
    scratch
}

/// Standard output that has no space left.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("opened").into()
}

#[test]
fn output_that_could_not_be_written_is_a_failure() {
    let scratch = with_tree();
    let (image, target) = (scratch.image(), scratch.path().join("target"));
    let source = scratch.path().join("source");
    let commands = [
        scratch.cffs(["cat"]).arg(&image).arg("/f7").stdout(full()).output(),
        scratch.cffs(["ls", "-l"]).arg(&image).stdout(full()).output(),
        scratch.cffs(["ls", "--json", "-R"]).arg(&image).stdout(full()).output(),
        scratch.cffs(["export"]).arg(&image).arg("/").arg(&target).stdout(full()).output(),
        scratch.cffs(["import"]).arg(&image).arg(&source).stdout(full()).output(),
        scratch.cffs(["import", "--json"]).arg(&image).arg(&source).stdout(full()).output(),
    ];
    for output in commands {
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("No space left on device"), "{said}");
    }
}

#[test]
fn the_path_that_could_not_be_used_is_named() {
    let scratch = with_tree();
    let image = scratch.image();
    let said = fail(1, scratch.cffs(["export"]).arg(&image).args(["/nope", "x"]));
    assert!(said.contains("/nope: no such file or directory"), "{said}");
    let said = fail(1, scratch.cffs(["cat"]).arg(&image).args(["/f1", "/nope"]));
    assert!(said.contains("/nope: no such file or directory"), "{said}");
    let said = fail(1, scratch.cffs(["ls"]).arg(&image).arg("/nope"));
    assert!(said.contains("/nope: no such file or directory"), "{said}");
    let missing = scratch.path().join("missing");
    let said = fail(1, scratch.cffs(["import"]).arg(&image).arg(&missing));
    assert!(said.contains(&format!("{}: No such file", missing.display())), "{said}");
}

#[test]
fn a_tree_that_does_not_fit_is_a_failure() {
    let scratch = with_tree();
    let small = scratch.path().join("small.cffs");
    succeed(scratch.cffs(["mkfs", "-q", "--size", "1M"]).arg(&small));
    let said = fail(1, scratch.cffs(["import"]).arg(&small).arg(scratch.path().join("source")));
    assert!(said.contains("no space left on the volume"), "{said}");
    succeed(scratch.cffs(["fsck", "-f", "-n"]).arg(&small));
}

#[test]
fn an_export_to_a_full_host_is_a_failure() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: mounting tmpfs takes root");
        return;
    }
    let scratch = with_tree();
    let target = scratch.path().join("small");
    fs::create_dir(&target).expect("made");
    let mount = ["-t", "tmpfs", "-o", "size=1M", "none"];
    succeed(Command::new("mount").args(mount).arg(&target));
    let output = scratch.cffs(["export"]).arg(scratch.image()).arg("/").arg(&target).output();
    succeed(Command::new("umount").arg(&target));
    let output = output.expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device") && said.contains("small/f"), "{said}");
}

/// Where one file could not be copied, the others are, and the command fails.
#[test]
fn a_file_that_could_not_be_copied_makes_the_command_fail() {
    let scratch = with_tree();
    let target = scratch.path().join("target");
    fs::create_dir_all(target.join("f3/in the way")).expect("made");
    let said = fail(1, scratch.cffs(["export"]).arg(scratch.image()).arg("/").arg(&target));
    assert!(said.contains("target/f3: ") && said.contains("1 file could not"), "{said}");
    assert_eq!(fs::read_dir(&target).expect("there").count(), 20);
}
