//! Archives of other programs extracted into a volume, and archives of a volume extracted by other programs:
//! permissions, extended attributes, times and formats.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use super::{feed, said};
use crate::harness::{Scratch, succeed};

/// Writes an archive of a volume's tree.
fn archived(scratch: &Scratch, path: &str) -> Vec<u8> {
    let output = scratch.cffs(["tar"]).arg(scratch.image()).arg(path).output().expect("it starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    output.stdout
}

/// Extracts an archive into a volume and exports the result.
fn extracted(scratch: &Scratch, archive: &[u8], to: &str) -> std::path::PathBuf {
    let target = format!("/{to}");
    let mut tar = scratch.cffs(["tar", "-x"]);
    let output = feed(tar.arg(scratch.image()).arg(&target), archive);
    assert!(output.status.success() && output.stderr.is_empty(), "{to}: {}", said(&output));
    let back = scratch.path().join(to);
    succeed(scratch.cffs(["export", "-q"]).arg(scratch.image()).arg(&target).arg(&back));
    back
}

/// The output of getfacl and getfattr for a tree.
fn rights(top: &Path) -> String {
    let acls = succeed(Command::new("getfacl").args(["-Rn", "."]).current_dir(top));
    let xattrs = ["-Rhd", "-e", "hex", "-m", "^(user|security)", "."];
    let xattrs = succeed(Command::new("getfattr").args(xattrs).current_dir(top));
    // getfacl and getfattr list directories in on-disk order.
    let mut files: Vec<&str> = acls.split("\n\n").chain(xattrs.split("\n\n")).collect();
    files.sort_unstable();
    files.join("\n\n")
}

/// Files with ACLs, and with extended attributes whose values and names need escaping.
fn tree_with_rights(scratch: &Scratch) -> std::path::PathBuf {
    let top = scratch.path().join("tree");
    fs::create_dir_all(top.join("dir")).expect("made");
    for name in ["acl", "group10", "masked", "note", "plain"] {
        fs::write(top.join(name), name).expect("written");
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(0o600)).expect("set");
    }
    let set = |arguments: &[&str], name: &str| {
        succeed(Command::new("setfacl").args(arguments).arg(top.join(name)));
    };
    set(&["-m", "u:1000:r,u:bin:rw,g::-,m::rw"], "acl");
    // bsdtar writes the group's permissions into the mode, not the mask.
    set(&["-m", "u:1000:rwx,g::rwx,m::---"], "masked");
    // The group's encoded number is a line end.
    set(&["-m", "g:10:r"], "group10");
    set(&["-d", "-m", "u:1000:rwx"], "dir");
    set(&["-m", "u:1002:---"], "dir");
    for (name, value) in
        [("user.lines", "0x0a610a0a"), ("user.zero", "0x0000ff0a"), ("user.a=b%c", "0x31")]
    {
        let mut setfattr = Command::new("setfattr");
        succeed(setfattr.args(["-n", name, "-v", value]).arg(top.join("note")));
    }
    succeed(Command::new("setfattr").args(["-n", "user.empty"]).arg(top.join("note")));
    top
}

/// Regression: `cffs tar` stored an ACL as an extended attribute that GNU tar and bsdtar drop: the owning
/// group then got the permissions of the mask. It did not read their ACLs, and omitted a file if a record
/// contained a line end.
#[test]
fn acls_and_attributes_go_to_and_from_gnu_tar_and_bsdtar() {
    let scratch = Scratch::with_image();
    let top = tree_with_rights(&scratch);
    let expected = rights(&top);
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&top).arg("/tree"));
    let archive = archived(&scratch, "/tree");
    assert_eq!(rights(&extracted(&scratch, &archive, "itself")), expected);

    let every = ["--acls", "--xattrs", "--xattrs-include=*"];
    let programs: [(&str, &[&str], &[&str]); 3] = [
        ("tar", &every, &["--acls", "--xattrs", "--xattrs-include=*", "--numeric-owner"]),
        ("tar", &["--format=pax", "--acls", "--xattrs", "--numeric-owner"], &every),
        ("bsdtar", &["--format=pax", "--acls", "--xattrs"], &["--acls", "--xattrs"]),
    ];
    for (number, (program, writing, reading)) in programs.iter().enumerate() {
        let out = scratch.path().join(format!("out{number}"));
        fs::create_dir(&out).expect("made");
        let mut tar = Command::new(program);
        tar.args(*reading).args(["-xpf", "-", "-C"]).arg(&out);
        let output = feed(&mut tar, &archive);
        assert!(output.status.success(), "{program}: {}", said(&output));
        // bsdtar takes a name literally, and a key cannot contain the '=' of a name.
        let found = rights(&out).replace("user.a%3Db%25c", "user.a\\075b%c");
        assert_eq!(found, expected, "cffs tar, {program}");
        let mut tar = Command::new(program);
        tar.args(*writing).args(["-cf", "-", "-C"]).arg(&top).arg(".");
        let archive = tar.output().expect("it starts").stdout;
        let back = extracted(&scratch, &archive, &format!("from{number}"));
        assert_eq!(rights(&back), expected, "{program}, cffs tar");
    }
    scratch.assert_clean();
}

/// Regression: copied files kept the default ACL of their directory, which grants permissions to users other
/// than the owner, and copied directories kept earlier ACLs and attributes.
#[test]
fn copies_have_exactly_the_permissions_of_their_source() {
    let scratch = Scratch::with_image();
    let top = tree_with_rights(&scratch);
    let inside = top.join("dir/inside");
    fs::write(&inside, "inside").expect("written");
    succeed(Command::new("setfacl").arg("-b").arg(&inside));
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o660)).expect("set");
    succeed(Command::new("setfattr").args(["-n", "user.old"]).arg(top.join("dir")));
    let store = format!("file://{}", scratch.path().join("store").display());
    for run in 1..=3 {
        if run == 3 {
            succeed(Command::new("setfacl").args(["-b", "-k"]).arg(top.join("dir")));
            succeed(Command::new("setfattr").args(["-x", "user.old"]).arg(top.join("dir")));
            fs::write(top.join("dir/new"), "new").expect("written");
        }
        // Publishing copies a file again only if it has changed.
        fs::write(&inside, format!("inside, version {run}")).expect("written");
        let expected = rights(&top);
        let import = ["import", "-q"];
        succeed(scratch.cffs(import).arg(scratch.image()).arg(&top).arg("/imported"));
        let version = format!("{store}@v{run}");
        succeed(scratch.cffs(["publish", "-q"]).arg(&top).arg(&version));
        let images = [(scratch.image(), "/imported"), (version.into(), "/")];
        for (number, (image, path)) in images.into_iter().enumerate() {
            let out = scratch.path().join(format!("out{number}"));
            succeed(scratch.cffs(["export", "-q"]).arg(image).arg(path).arg(&out));
            assert_eq!(rights(&out), expected, "run {run}, copy {number}");
        }
        if run < 3 {
            let tar = ["--acls", "--xattrs", "-cf", "-", "-C"];
            let archive = Command::new("tar").args(tar).arg(&top).arg(".").output();
            let back = extracted(&scratch, &archive.expect("it starts").stdout, "extracted");
            assert_eq!(rights(&back), expected, "run {run}, tar");
        }
    }
    scratch.assert_clean();
}

#[test]
fn without_its_acl_a_file_grants_the_group_no_more() {
    let scratch = Scratch::with_image();
    let top = tree_with_rights(&scratch);
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&top).arg("/tree"));
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&top.join("acl")), 0o660, "the mask");
    let mut tar = scratch.cffs(["tar", "--no-xattrs"]);
    let without = tar.arg(scratch.image()).arg("/tree").output().expect("it starts").stdout;
    assert_eq!(mode(&extracted(&scratch, &without, "written").join("acl")), 0o600);
    let mut tar = scratch.cffs(["tar", "-x", "--no-xattrs"]);
    let output = feed(tar.arg(scratch.image()).arg("/read"), &archived(&scratch, "/tree"));
    assert!(output.status.success(), "{}", said(&output));
    let back = scratch.path().join("read");
    succeed(scratch.cffs(["export", "-q"]).arg(scratch.image()).arg("/read").arg(&back));
    assert_eq!(mode(&back.join("acl")), 0o600);
}

/// The output of `find` for a tree, except sizes and links of directories, which depend on the file system.
fn listed(top: &Path) -> Vec<String> {
    let format = "%P %y %m %n %s %U %G %T@ %l\\n";
    let list = succeed(Command::new("find").arg(top).args(["-printf", format]));
    let mut lines: Vec<String> = list
        .lines()
        .map(|line| {
            let mut parts: Vec<&str> = line.split(' ').collect();
            if parts.get(1) == Some(&"d") {
                (parts[3], parts[4]) = ("", "");
            }
            parts.join(" ")
        })
        .collect();
    lines.sort();
    lines
}

/// A tree that every format can represent, and files that ustar and v7 cannot.
fn odd_tree(scratch: &Scratch) -> std::path::PathBuf {
    let top = scratch.path().join("odd");
    fs::create_dir_all(top.join("d/e")).expect("made");
    let write = |name: &str, seconds: i64| {
        let path = top.join(name);
        fs::write(&path, name).expect("written");
        let away = Duration::from_secs(seconds.unsigned_abs());
        let time = if seconds < 0 { UNIX_EPOCH - away } else { UNIX_EPOCH + away };
        File::options().write(true).open(path).and_then(|f| f.set_modified(time)).expect("set");
    };
    write("plain", 1_000_000_000);
    write("d/e/in", 7);
    fs::hard_link(top.join("plain"), top.join("second")).expect("made");
    symlink("plain", top.join("link")).expect("made");
    fs::create_dir(top.join("closed")).expect("made");
    write("closed/inner", 8);
    fs::set_permissions(top.join("closed"), fs::Permissions::from_mode(0o500)).expect("set");
    for dir in ["d/e", "d", "closed", "."] {
        File::open(top.join(dir)).and_then(|f| f.set_modified(UNIX_EPOCH)).expect("set");
    }
    top
}

fn extend(top: &Path) {
    for (name, seconds) in [("old", -4i64), ("older", -2_000_000_000), ("far", (1 << 33) + 5)] {
        let path = top.join(name);
        fs::write(&path, name).expect("written");
        let date = format!("@{seconds}");
        succeed(Command::new("touch").args(["-d", &date]).arg(path));
    }
    fs::write(top.join("n".repeat(150)), b"long").expect("written");
    fs::write(top.join("d").join("m".repeat(200)), b"longer").expect("written");
    symlink("z".repeat(180), top.join("far-link")).expect("made");
    let holes = File::create(top.join("holes")).expect("made");
    std::os::unix::fs::FileExt::write_all_at(&holes, &[b'q'; 5000], 1 << 20).expect("written");
    holes.set_len(3 << 20).expect("set");
    for name in [&*"n".repeat(150), &format!("d/{}", "m".repeat(200)), "holes", "d", "."] {
        File::open(top.join(name)).and_then(|f| f.set_modified(UNIX_EPOCH)).expect("set");
    }
    succeed(Command::new("touch").args(["-hd", "@0"]).arg(top.join("far-link")));
}

const PYTHON: &str = "
import sys, tarfile
t = tarfile.open(fileobj=sys.stdout.buffer, mode='w|', format=getattr(tarfile, sys.argv[2] + '_FORMAT'))
t.add(sys.argv[1], '.')
t.close()
";

/// Regression: files were missing from archives with times before 1970, binary numbers or global headers.
#[test]
fn archives_of_every_format_and_program_are_extracted_completely() {
    let scratch = Scratch::with_image();
    let top = odd_tree(&scratch);
    succeed(Command::new("touch").args(["-hd", "@5"]).arg(top.join("link")));
    let tar = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let archive = command.args(arguments).args(["-cf", "-", "-C"]).arg(&top).arg(".").output();
        let archive = archive.expect("it starts");
        assert!(archive.status.success(), "{program} {arguments:?}: {}", said(&archive));
        archive.stdout
    };
    let python = |format: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", PYTHON]).arg(&top).arg(format);
        let archive = command.output().expect("it starts");
        assert!(archive.status.success(), "{format}: {}", said(&archive));
        archive.stdout
    };
    let expected = listed(&top);
    let small = [
        tar("tar", &["--format=v7"]),
        tar("tar", &["--format=ustar"]),
        tar("bsdtar", &["--format=ustar"]),
        tar("bsdtar", &["--format=gnutar"]),
        python("USTAR"),
    ];
    for (number, archive) in small.iter().enumerate() {
        let back = extracted(&scratch, archive, &format!("small{number}"));
        assert_eq!(listed(&back), expected, "{number}");
    }
    extend(&top);
    let expected = listed(&top);
    let large = [
        tar("tar", &["--format=gnu", "-S"]),
        tar("tar", &["--format=oldgnu", "-S"]),
        tar("tar", &["--format=posix", "-S"]),
        tar("bsdtar", &["--format=pax"]),
        python("PAX"),
        python("GNU"),
    ];
    for (number, archive) in large.iter().enumerate() {
        let back = extracted(&scratch, archive, &format!("large{number}"));
        assert_eq!(listed(&back), expected, "{number}");
    }
    // All programs extract the volume's archive.
    let archive = archived(&scratch, "/large2");
    for program in ["tar", "bsdtar"] {
        let out = scratch.path().join(format!("by-{program}"));
        fs::create_dir(&out).expect("made");
        let output = feed(Command::new(program).args(["-xpf", "-", "-C"]).arg(&out), &archive);
        // GNU tar warns about times before 1970 and in the future.
        assert!(output.status.success(), "{program}: {}", said(&output));
        // bsdtar does not set the time of the directory into which it extracts, which comes first.
        assert_eq!(listed(&out)[1..], expected[1..], "{program}");
    }
    scratch.assert_clean();
}

#[test]
fn an_archive_of_git_ends_with_success() {
    let scratch = Scratch::with_image();
    let top = scratch.path().join("repository");
    fs::create_dir(&top).expect("made");
    fs::write(top.join("file"), b"x").expect("written");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.email=a@b", "-c", "user.name=a"]).args(arguments);
        succeed(command.current_dir(&top))
    };
    git(&["init", "-q"]);
    git(&["add", "file"]);
    git(&["commit", "-qm", "x"]);
    let mut command = Command::new("git");
    let archive = command.args(["archive", "HEAD"]).current_dir(&top).output().expect("it starts");
    let back = extracted(&scratch, &archive.stdout, "tree");
    assert_eq!(fs::read(back.join("file")).expect("there"), b"x");
    assert_eq!(fs::read_dir(&back).expect("there").count(), 1);
}

/// Regression: a private directory whose entry was damaged was created with 0755 for its contents.
#[test]
fn a_directory_whose_entry_is_damaged_is_closed() {
    let scratch = Scratch::with_image();
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, kind: tar::EntryType, mode: u32| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_mtime(0);
        header.set_size(if kind == tar::EntryType::XHeader { 8 } else { 0 });
        header.set_path(name).expect("short");
        header.set_cksum();
        let contents: &[u8] = if kind == tar::EntryType::XHeader { b"nonsense" } else { b"" };
        archive.append(&header, contents).expect("added");
    };
    add("pax", tar::EntryType::XHeader, 0o644);
    add("closed", tar::EntryType::Directory, 0o700);
    add("closed/inner", tar::EntryType::Regular, 0o644);
    add("unnamed/inner", tar::EntryType::Regular, 0o644);
    let archive = archive.into_inner().expect("ended");
    let output = feed(scratch.cffs(["tar", "-x"]).arg(scratch.image()), &archive);
    let words = said(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("cffs: closed: its extended header is damaged"), "{words}");
    let back = scratch.path().join("back");
    succeed(scratch.cffs(["export", "-q"]).arg(scratch.image()).arg("/").arg(&back));
    let mode = |name: &str| fs::metadata(back.join(name)).expect("there").mode() & 0o7777;
    assert_eq!((mode("closed"), mode("unnamed")), (0o700, 0o755));
    assert!(back.join("closed/inner").exists());
}

#[test]
fn an_unknown_name_in_an_acl_costs_only_its_entry() {
    let scratch = Scratch::with_image();
    let mut archive = tar::Builder::new(Vec::new());
    let acl = "user::rw-,user:no-such-user:r--,user:1000:r--,group::---,mask::r--,other::---";
    archive.append_pax_extensions([("SCHILY.acl.access", acl.as_bytes())]).expect("added");
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o640);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header.set_path("file").expect("short");
    header.set_cksum();
    archive.append(&header, &b""[..]).expect("added");
    let archive = archive.into_inner().expect("ended");
    let output = feed(scratch.cffs(["tar", "-x"]).arg(scratch.image()), &archive);
    let words = said(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(
        words.contains("file: its ACL names a user or group that this machine does not know"),
        "{words}"
    );
    assert!(words.contains("user:no-such-user:r--"), "{words}");
    let archive = archived(&scratch, "/");
    let kept = "SCHILY.acl.access=user::rw-,user:1000:r--,group::---,mask::r--,other::---\n";
    assert!(String::from_utf8_lossy(&archive).contains(kept));
}

#[test]
fn a_socket_is_left_out_with_a_note() {
    let scratch = Scratch::with_image();
    let top = scratch.path().join("tree");
    fs::create_dir(&top).expect("made");
    let _listener = UnixListener::bind(top.join("socket")).expect("bound");
    // Regression: the archive had the second name as a link to the missing first one.
    fs::hard_link(top.join("socket"), top.join("socket 2")).expect("linked");
    fs::write(top.join("file"), b"x").expect("written");
    succeed(scratch.cffs(["import", "-q"]).arg(scratch.image()).arg(&top).arg("/tree"));
    let output = scratch.cffs(["tar"]).arg(scratch.image()).arg("/tree").output();
    let output = output.expect("it starts");
    assert!(output.status.success());
    let notes = said(&output);
    let mut notes: Vec<&str> = notes.lines().collect();
    notes.sort_unstable();
    let expected =
        ["socket 2", "socket"].map(|name| format!("cffs: /tree/{name}: a socket is left out"));
    assert_eq!(notes, expected);
    let mut archive = tar_wire::Archive::new(&*output.stdout);
    let mut names = Vec::new();
    while let Some(entry) = archive.next_entry().expect("an archive") {
        names.push(String::from_utf8_lossy(&entry.path).into_owned());
    }
    names.sort_unstable();
    assert_eq!(names, [".", "file"]);
}
