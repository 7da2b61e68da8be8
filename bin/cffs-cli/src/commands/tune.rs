//! `cffs tune`: changes settings made by mkfs, as far as they can be changed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail};
use cffs::clock::{Clock, SystemClock};
use cffs::device::PairedDevice;
use cffs::device::file::Access;
use cffs::format::superblock::{Compression, Reserve};
use cffs::host::SystemHost;
use cffs::vfs::types::{JournalMode, OpenOptions};
use cffs::vfs::{SetVolume, mark, read_superblock};
use cffs::{journal, mkfs};
use cffs_serve::describe;
use cffs_serve::served::control::{self, Question, Request};
use clap::Args;
use serde_json::Value;

use crate::keys::{self, Keys};
use crate::names::{self, OnMount};
use crate::output::{self, say};
use crate::policies::{Errors, PolicyName};
use crate::size::Portion;
use crate::{image, signatures, size};

/// Change the label, the UUID, the policies, the reserve, the journal or the key of a volume
///
/// Changes nothing else, so the time does not depend on the size of the volume. A mounted volume is tuned by
/// its server and can be used meanwhile; only for --journal it must be unmounted. If the command is
/// interrupted, either all requested changes are made, or none. Without changes, prints the settings.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs tune tree.cffs                    show the settings
  cffs tune --label photos tree.cffs
  cffs tune --uuid random copy.cffs      give a copied image an identity of its own
  cffs tune --reserve 5% /dev/sdb1       keep a twentieth of the space for root
  cffs tune --journal 60M /dev/sdb1      an fsync takes one write and one flush from now on
  cffs tune --errors remount-ro mnt
  cffs tune --key-file old --new-key-file new s3://bucket/vol")]
pub struct Tune {
    /// An image, a device, or a directory on a mounted volume; for a new key, a volume in a store.
    #[arg(value_name = "IMAGE|DEVICE|DIR")]
    target: PathBuf,
    /// The volume's name, at most 64 bytes; '' for none.
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// The volume's UUID, or 'random' for a new one.
    #[arg(short = 'U', long, value_parser = parse_uuid)]
    uuid: Option<uuid::Uuid>,
    /// How a mount reacts to damage, unless -o errors= says otherwise.
    #[arg(short, long, value_enum)]
    errors: Option<Errors>,
    /// Space that only root may use, in bytes or as a percentage of the volume, for instance 1G or 5%; less
    /// than half of it.
    #[arg(short, long, value_name = "SIZE|PERCENT", value_parser = Portion::parse)]
    reserve: Option<Portion>,
    /// The UID of a user who may also use the reserve; 0 for none.
    #[arg(long, value_name = "UID")]
    reserve_user: Option<u32>,
    /// The GID of a group whose members may also use the reserve; 0 for none.
    #[arg(long, value_name = "GID")]
    reserve_group: Option<u32>,
    /// Compress new contents: zstd, zstd:LEVEL with a level from 1 to 19, or off. Written contents stay as
    /// they are. Only for volumes that were made with --compress.
    #[arg(long, value_name = "CODEC", value_parser = Compression::from_str)]
    compress: Option<Compression>,
    /// How files find their neighbours from now on. Nothing moves. Files keep the key that they got when they
    /// were created until cffs regroup moves them or, with access, until their access time changes. A volume
    /// cannot change to or from none and scattered.
    #[arg(long, value_enum)]
    policy: Option<PolicyName>,
    /// Add a journal of this size, in bytes or with a unit (K, M or G), or remove the journal (none). The
    /// journal is placed in free space after the head of a cylinder group; nothing is moved to make room for
    /// it.
    #[arg(long, value_name = "SIZE|none", value_parser = size::parse_or_none, conflicts_with_all =
          ["label", "uuid", "errors", "reserve", "reserve_user", "reserve_group", "compress", "policy"])]
    journal: Option<u64>,
    /// Add a journal on another device, or in a file, which is created if it does not exist. Its size is 64M,
    /// unless --journal gives another.
    #[arg(long, value_name = "DEVICE", conflicts_with_all =
          ["label", "uuid", "errors", "reserve", "reserve_user", "reserve_group", "compress", "policy"])]
    journal_device: Option<PathBuf>,
    /// Seal the key of a volume in an object store with the key or passphrase in this file, in place of the
    /// present one. Contents stay as they are. The present one still opens a copy of the object "format"
    /// that was made before.
    #[arg(long, value_name = "FILE", conflicts_with_all =
          ["label", "uuid", "errors", "reserve", "reserve_user", "reserve_group", "compress", "policy",
           "journal", "journal_device"])]
    new_key_file: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print the superblock as JSON.
    #[arg(long)]
    json: bool,
}

fn parse_uuid(text: &str) -> Result<uuid::Uuid, String> {
    match text {
        "random" => Ok(uuid::Uuid::new_v4()),
        _ => text.parse().map_err(|why| format!("it is a UUID or 'random' ({why})")),
    }
}

/// The effect of a new setting of the compression.
fn about_compression(compression: Compression) -> String {
    let now = match compression {
        Compression::Off => String::from("not compressed, except in files with chattr +c"),
        codec => format!("compressed with {codec}, except in files with chattr +m"),
    };
    format!(
        "from now on, contents that are written are {now}; stored contents stay as they are until they are \
         rewritten"
    )
}

impl Tune {
    /// Changes the volume, and prints its new settings.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(path) = &self.new_key_file {
            return self.rekey(path).with_context(|| self.target.display().to_string());
        }
        let superblock = self.tune().with_context(|| self.target.display().to_string())?;
        if self.json {
            output::json(&superblock)?;
        } else if !self.quiet {
            self.print(&superblock)?;
            if let Some(compression) = self.compress {
                say!("{}", about_compression(compression))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tune(&self) -> anyhow::Result<Value> {
        if !self.has_changes() {
            return self.settings();
        }
        if self.journal.is_some() || self.journal_device.is_some() {
            return self.set_journal();
        }
        if let Some(mounted) = names::mounted(&self.target)? {
            return self.tune_mounted(&mounted.path);
        }
        let device = image::open_device(&self.target, Access::ReadWrite)?;
        let volume = image::open_volume(&self.target, device, OpenOptions::default())?;
        let changes = self.changes(&describe::superblock(&volume.writer().superblock.get()));
        let tuned = changes.and_then(|changes| Ok(volume.tune(&changes)?));
        let closed = volume.close();
        let tuned = tuned?;
        closed.context("the volume was changed, but closing it failed")?;
        Ok(describe::superblock(&tuned))
    }

    fn has_changes(&self) -> bool {
        let given = [
            self.label.is_some(),
            self.uuid.is_some(),
            self.errors.is_some(),
            self.reserve.is_some(),
            self.reserve_user.is_some(),
            self.reserve_group.is_some(),
            self.compress.is_some(),
            self.policy.is_some(),
            self.journal.is_some(),
            self.journal_device.is_some(),
        ];
        given.contains(&true)
    }

    fn settings(&self) -> anyhow::Result<Value> {
        if let Some(mounted) = names::mounted(&self.target)? {
            return Ok(control::ask(&mounted.path, Question::Info)?["superblock"].take());
        }
        if let Ok(mut answer) = control::ask_server_of(&self.target, Question::Info) {
            return Ok(answer["superblock"].take());
        }
        let device = image::open(&self.target, Access::ReadOnly, false)?;
        Ok(describe::superblock(&read_superblock(&*device)?))
    }

    fn rekey(&self, path: &Path) -> anyhow::Result<ExitCode> {
        let Some(location) = image::location(&self.target)? else {
            bail!(
                "name a volume in an object store by its URL, also while it is mounted; others have no key"
            );
        };
        if let Some(version) = location.version() {
            bail!("a version has the key of its volume; leave out @{version}");
        }
        let keys = Keys { key_file: Some(path.to_owned()), key_command: None };
        let Some(secret) = keys.read()? else { bail!("no new key") };
        keys::warn_of_weakness(Some(&secret));
        cffs_object::rekey(&location, &secret)?;
        if !self.quiet && !self.json {
            say!(
                "{}: the key was replaced; the old one still opens clones, and copies of the object \
                 \"format\", that were made before",
                self.target.display()
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn set_journal(&self) -> anyhow::Result<Value> {
        if let Some(OnMount { mounted, .. }) = names::mounted(&self.target)? {
            let (source, directory) = (mounted.source.display(), mounted.directory.display());
            bail!(
                "the journal of a mounted volume cannot change; run cffs umount {directory} first, then name \
                 {source}"
            );
        }
        let device = Arc::new(image::open_device(&self.target, Access::ReadWrite)?);
        // Recovers the volume after a crash, and empties the journal. A lost journal is not needed if it was
        // empty.
        let had_journal = journal::has_journal(&read_superblock(&*device)?);
        if had_journal && self.journal_device.is_some() {
            bail!("the volume has a journal; remove it first: cffs tune --journal none");
        }
        let remedy = "if it is not needed, remove the file, or erase the device with wipefs or dd";
        let open = |path: &PathBuf| {
            let bytes = self.journal.unwrap_or(0);
            signatures::open_for_journal(path, &self.target, bytes, false, remedy)
        };
        let medium = self.journal_device.as_ref().map(open).transpose()?;
        let mode = if had_journal { JournalMode::None } else { JournalMode::On };
        let options = OpenOptions { journal: mode, ..OpenOptions::default() };
        image::open_volume(&self.target, Arc::clone(&device), options)?.close()?;
        mark::claim(&*device, &SystemHost, SystemClock.now(), false)?;
        let set = match medium {
            Some(medium) => {
                let paired = PairedDevice::new(Arc::clone(&device), medium);
                mkfs::set_journal(&paired, Some(self.journal.unwrap_or(0)))
            }
            None => mkfs::set_journal(&*device, self.journal.filter(|bytes| *bytes > 0)),
        };
        mark::release(&*device, &SystemHost)?;
        set?;
        Ok(describe::superblock(&read_superblock(&*device)?))
    }

    fn tune_mounted(&self, directory: &Path) -> anyhow::Result<Value> {
        let ask = || control::ask(directory, Question::Info);
        let changes = self.changes(&ask()?["superblock"])?;
        control::request(directory, Request::Tune(changes))?;
        Ok(ask()?["superblock"].take())
    }

    /// The changes to make, for a volume with this description.
    fn changes(&self, now: &Value) -> anyhow::Result<SetVolume> {
        let number = |value: &Value| value.as_u64().context("its size is unknown");
        let fragment_bytes = number(&now["fragment_bytes"])?;
        let total_bytes = number(&now["size_bytes"])?;
        let old = &now["reserve"];
        let old_id = |name: &str| old[name].as_u64().unwrap_or(0) as u32;
        let old_bytes = old["bytes"].as_u64().unwrap_or(0);
        let reserve_bytes = self.reserve.map_or(old_bytes, |portion| portion.of(total_bytes));
        let changes_reserve =
            self.reserve.is_some() || self.reserve_user.is_some() || self.reserve_group.is_some();
        Ok(SetVolume {
            label: self.label.as_ref().map(|label| label.clone().into_bytes()),
            uuid: self.uuid.map(uuid::Uuid::into_bytes),
            errors: self.errors.map(Errors::policy),
            reserve: changes_reserve.then(|| Reserve {
                fragments: reserve_bytes.div_ceil(fragment_bytes.max(1)),
                uid: self.reserve_user.unwrap_or_else(|| old_id("uid")),
                gid: self.reserve_group.unwrap_or_else(|| old_id("gid")),
            }),
            compression: self.compress,
            policy: self.policy.map(PolicyName::policy),
        })
    }

    /// Prints the current values of the tunable fields.
    fn print(&self, superblock: &Value) -> anyhow::Result<()> {
        let shown = ["label", "uuid", "errors", "reserve", "compression", "policy", "journal"];
        let shown: serde_json::Map<String, Value> =
            shown.iter().map(|name| ((*name).to_owned(), superblock[*name].clone())).collect();
        output::key_values(&Value::Object(shown))
    }
}
