//! A limit on the memory of programs, including the kernel's caches for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A control group with a limit on memory, which is removed when dropped.
pub struct MemoryGroup {
    dir: PathBuf,
    limit: &'static str,
}

impl MemoryGroup {
    /// A new control group, in the hierarchy of this system.
    pub fn new() -> Result<MemoryGroup> {
        let name = format!("cffs-bench-{}", std::process::id());
        let (root, limit) =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
                .into_iter()
                .find(|(root, _)| Path::new(root).join("cgroup.procs").exists())
                .context("no control groups below /sys/fs/cgroup")?;
        let root = Path::new(root);
        if limit == "memory.max" {
            let path = root.join("cgroup.subtree_control");
            fs::write(&path, "+memory").with_context(|| format!("write {}", path.display()))?;
        }
        let dir = root.join(name);
        fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
        let group = MemoryGroup { dir, limit };
        if !group.dir.join(limit).exists() {
            bail!("{}: this kernel does not support limits on memory", group.dir.display());
        }
        Ok(group)
    }

    /// Sets the limit for all programs in the group together.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        let path = self.dir.join(self.limit);
        fs::write(&path, bytes.to_string()).with_context(|| format!("write {}", path.display()))
    }

    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
        command.arg(self.dir.join("cgroup.procs")).arg(program);
        command
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("{} stays: {error}", self.dir.display());
        }
    }
}
