//! Applications on a source tree: unpack it, search it, copy it twice, run git on it, build it, remove the
//! objects, and a copy.
//!
//! The programs are the system's own (tar, grep, cp, git, cc, rm), so their system calls are typical. The
//! tree is made from the seed and packed outside the measured file system.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::random::{LogNormal, Random};
use super::{Session, Tally, tree};

/// C files in a directory.
const UNITS_EACH: u64 = 8;

/// The size of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Apps {
    /// The number of files in the tree. The Linux kernel has about 85,000.
    pub files: u64,
    /// C files among them that are compiled, as in USENIX'97 §4.5; none if zero.
    pub compiled: u64,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Apps {
    pub fn run(&self, session: &mut Session) -> Result<()> {
        let (files, bytes) = (self.files, self.unpacked(session)?);
        session.read_phase("search", files, |root, tally| {
            // The text does not occur in the tree, so grep reads everything and exits with 1.
            let mut grep = Command::new("grep");
            run_any(grep.args(["-rF", "nowhere-to-be-found"]).arg(root.join("tree")), tally)?;
            tally.add(files, bytes);
            Ok(())
        })?;
        // The second command copies the contents even if the file system would share them.
        for (phase, to, options) in
            [("copy", "copy", &["-a"][..]), ("copy unshared", "copy2", &["-a", "--reflink=never"])]
        {
            session.write_phase(phase, files, true, |root, tally| {
                let mut cp = Command::new("cp");
                run(cp.args(options).arg(root.join("tree")).arg(root.join(to)), tally)?;
                tally.add(files, bytes);
                Ok(())
            })?;
        }
        session.prepare("remove a copy", |root, tally| {
            run(Command::new("rm").arg("-rf").arg(root.join("copy2")), tally)
        })?;
        session.prepare("git add", |root, tally| {
            git(root, &["init", "-q"], tally)?;
            git(root, &["add", "-A"], tally)
        })?;
        session.write_phase("git status", files, true, |root, tally| {
            git(root, &["status", "--short"], tally)?;
            tally.add(files, 0);
            Ok(())
        })?;
        if self.compiled > 0 {
            session.write_phase("build", self.compiled, true, |root, tally| {
                for i in 0..self.compiled {
                    let build = root.join("tree/build");
                    let (unit, mut cc) = (unit(i), Command::new("cc"));
                    let object = format!("{unit}.o");
                    let source = format!("{unit}.c");
                    run(cc.current_dir(build).args(["-O1", "-c", "-o", &object, &source]), tally)?;
                    tally.file(0)?;
                }
                Ok(())
            })?;
            session.write_phase("clean", self.compiled, true, |root, tally| {
                let mut rm = Command::new("sh");
                run(rm.current_dir(root.join("tree/build")).args(["-c", "rm -f */*.o"]), tally)?;
                tally.add(self.compiled, 0);
                Ok(())
            })?;
        }
        session.write_phase("rm -rf", files, true, |root, tally| {
            run(Command::new("rm").arg("-rf").arg(root.join("copy")), tally)?;
            tally.add(files, 0);
            Ok(())
        })
    }

    /// Runs the first phase alone.
    pub fn unpack(&self, session: &mut Session) -> Result<()> {
        self.unpacked(session).map(|_| ())
    }

    /// Runs the first phase; returns the bytes in the unpacked files.
    fn unpacked(&self, session: &mut Session) -> Result<u64> {
        let scratch = tempfile::tempdir().context("a place for the archive")?;
        let archive = scratch.path().join("tree.tar");
        let bytes = self.pack(session, scratch.path(), &archive)?;
        session.write_phase("unpack", self.files, true, |root, tally| {
            run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(root), tally)?;
            tally.add(self.files, bytes);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Makes the tree in `scratch` and packs it; returns the bytes in its files.
    fn pack(&self, session: &Session, scratch: &Path, archive: &Path) -> Result<u64> {
        let (sizes, mut random) = (LogNormal::sources(), Random::new(self.seed));
        let contents = session.contents(self.seed, 1 << 20);
        let root = scratch.join("tree");
        fs::create_dir(&root)?;
        let (mut dirs, mut total): (Vec<PathBuf>, u64) = (vec![root.clone()], 0);
        for i in 0..self.files {
            // A new directory is made for every fourteen files, as in the Linux kernel, at a random place in
            // the tree.
            if i % 14 == 0 {
                let dir = dirs[random.index(dirs.len())].join(format!("dir{i:05}"));
                fs::create_dir(&dir)?;
                dirs.push(dir);
            }
            let size = sizes.sample(&mut random);
            let dir = &dirs[dirs.len() - 1];
            tree::create(&dir.join(format!("file{i:05}.txt")), contents.of(i, size as usize))?;
            total += size;
        }
        if self.compiled > 0 {
            self.write_sources(&root.join("build"))?;
        }
        let mut tar = Command::new("tar");
        let status = tar.arg("-cf").arg(archive).arg("-C").arg(scratch).arg("tree").status()?;
        if !status.success() {
            bail!("tar could not pack the tree");
        }
        fs::remove_dir_all(&root)?;
        Ok(total)
    }

    fn write_sources(&self, dir: &Path) -> Result<()> {
        for i in 0..self.compiled {
            let path = dir.join(unit(i) + ".c");
            fs::create_dir_all(path.parent().context("a directory")?)?;
            let mut source = String::from("#include <stdio.h>\n#include <string.h>\n");
            for f in 0..40 {
                writeln!(source, "int u{i}_{f}(int x) {{ return printf(\"%d\", x * {f}); }}")?;
            }
            fs::write(path, source)?;
        }
        Ok(())
    }
}

/// The path of a C file and of its object below the directory that is built, without the extension.
fn unit(i: u64) -> String {
    format!("part{:02}/unit{i:03}", i / UNITS_EACH)
}

fn git(root: &Path, arguments: &[&str], tally: &Tally) -> Result<()> {
    let mut git = Command::new("git");
    // Ignores the machine's configuration, and accepts a tree of any owner.
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    git.args(["-c", "safe.directory=*", "-C"]).arg(root.join("tree"));
    run(git.args(arguments), tally)
}

/// Runs a program that should succeed.
fn run(command: &mut Command, tally: &Tally) -> Result<()> {
    let status = run_any(command, tally)?;
    if status != Some(0) {
        bail!("{:?} ended with {status:?}", command.get_program());
    }
    Ok(())
}

/// Runs a program, checking for an interrupt meanwhile, and returns its exit code.
fn run_any(command: &mut Command, tally: &Tally) -> Result<Option<i32>> {
    let program = command.get_program().to_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("start {program:?}"))?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if let Err(interrupted) = tally.go_on() {
            child.kill()?;
            child.wait()?;
            return Err(interrupted);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
