//! A file system on a loop device.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext2,
    Ext4,
    Ext4WithoutFlex,
    /// With half as many blocks in a group.
    Ext4SmallGroups,
    /// With clusters of 16 blocks.
    Ext4Bigalloc,
    /// With the largest clusters, and the largest flex group, which is larger than the volume.
    Ext4LargeFlex,
    /// With blocks of 1 KiB, so that the first group begins with block 1.
    Ext4SmallBlocks,
    Xfs,
    Btrfs,
}

impl Kind {
    /// The program that makes it, its arguments, and the size: enough for several groups.
    fn mkfs(self) -> (&'static [&'static str], u64) {
        match self {
            Kind::Ext2 => (&["mkfs.ext2", "-q", "-F"], 256 << 20),
            Kind::Ext4 => (&["mkfs.ext4", "-q", "-F"], 8 << 30),
            Kind::Ext4WithoutFlex => (&["mkfs.ext4", "-q", "-F", "-O", "^flex_bg"], 2 << 30),
            Kind::Ext4SmallGroups => (&["mkfs.ext4", "-q", "-F", "-g", "16384"], 4 << 30),
            Kind::Ext4Bigalloc => (&["mkfs.ext4", "-q", "-F", "-O", "bigalloc"], 96 << 30),
            Kind::Ext4LargeFlex => (
                &["mkfs.ext4", "-q", "-F", "-O", "bigalloc", "-C", "262144", "-G", "2147483648"],
                96 << 30,
            ),
            Kind::Ext4SmallBlocks => {
                (&["mkfs.ext4", "-q", "-F", "-b", "1024", "-i", "65536"], 2 << 30)
            }
            Kind::Xfs => (&["mkfs.xfs", "-q", "-f"], 512 << 20),
            Kind::Btrfs => (&["mkfs.btrfs", "-q", "-f"], 256 << 20),
        }
    }
}

/// A mounted volume; dropping it unmounts.
pub struct Volume {
    kind: Kind,
    device: String,
    places: TempDir,
    at: PathBuf,
}

impl Volume {
    /// Makes a volume; nothing where this process may not mount.
    pub fn make(kind: Kind) -> Option<Volume> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: {kind:?} has to be mounted, which needs root");
            return None;
        }
        let places = tempfile::tempdir_in("/dev/shm").expect("a directory");
        // Users other than root use it as well.
        run(Command::new("chmod").arg("755").arg(places.path()));
        let image = places.path().join("image");
        let (mkfs, size) = kind.mkfs();
        std::fs::File::create(&image).and_then(|file| file.set_len(size)).expect("an image");
        run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image));
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&image));
        let device = device.trim().to_owned();
        let at = places.path().join("mnt");
        std::fs::create_dir(&at).expect("a directory");
        let volume = Volume { kind, device, places, at };
        run(Command::new("mount").arg(&volume.device).arg(&volume.at));
        Some(volume)
    }

    pub fn root(&self) -> &Path {
        &self.at
    }

    /// Writes everything to the device, so that programs that read the device see the current
    /// state.
    pub fn settle(&self) {
        run(Command::new("sync").arg("--file-system").arg(&self.at));
    }

    /// The group of an inode according to debugfs or xfs_db.
    pub fn group_by_its_own_tools(&self, inode: u64) -> u64 {
        let said = match self.kind {
            Kind::Xfs => {
                let ask = format!("convert inode {inode} agno");
                run(Command::new("xfs_db").args(["-r", "-c", &ask, &self.device]))
            }
            _ => {
                let ask = format!("imap <{inode}>");
                run(Command::new("debugfs").args(["-R", &ask, &self.device]))
            }
        };
        // `0x3 (3)`, and `Inode 12 is part of block group 3`.
        let line = said.lines().next().unwrap_or_default();
        let word = line.rsplit(' ').next().unwrap_or_default().trim_matches(['(', ')']);
        let group: u64 = word.parse().unwrap_or_else(|_| panic!("no group in {said}"));
        // By default a flex group has 16 block groups.
        if matches!(self.kind, Kind::Xfs | Kind::Ext4WithoutFlex) { group } else { group / 16 }
    }

    /// Unmounts it and checks it with its own fsck.
    pub fn check(&self) {
        assert!(unmount(&self.at), "umount {}", self.at.display());
        match self.kind {
            Kind::Xfs => run(Command::new("xfs_repair").args(["-n", &self.device])),
            _ => run(Command::new("e2fsck").args(["-f", "-n", &self.device])),
        };
        run(Command::new("mount").arg(&self.device).arg(&self.at));
    }
}

/// Unmounts a directory; returns whether that succeeded. Retries for 30 seconds: a child that another thread
/// has just forked keeps files of this process open until it executes its program.
pub fn unmount(directory: &Path) -> bool {
    (0..1500).any(|_| {
        let status = Command::new("umount").arg(directory).status();
        let unmounted = status.is_ok_and(|status| status.success());
        if !unmounted {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        unmounted
    })
}

impl Drop for Volume {
    fn drop(&mut self) {
        unmount(&self.at);
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
        let _ = &self.places;
    }
}

/// Runs a program, which must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

pub fn place(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_place")).args(arguments).output().expect("place")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All paths below a directory.
pub fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("list");
    let paths = entries.map(|entry| entry.expect("entry").path());
    paths
        .flat_map(|path| {
            let inside = if path.is_dir() { below(&path) } else { Vec::new() };
            std::iter::once(path).chain(inside)
        })
        .collect()
}
