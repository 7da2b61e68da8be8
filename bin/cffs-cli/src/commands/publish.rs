//! `cffs publish`: makes a tree a version of a volume in an object store.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{mem, thread};

use anyhow::{Context, bail};
use cffs::clock::{Clock, SystemClock};
use cffs::device::Geometry;
use cffs::device::file::Access;
use cffs::files::{self, CopyCause, CopyError, CopyOptions, Files, Observer};
use cffs::mkfs::{self, MkfsOptions};
use cffs::vfs::Volume;
use cffs::vfs::types::OpenOptions;
use cffs_object::{Location, LogDevice, versions};
use cffs_serve::served::control::MarkStatus;
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::changes::Tree;
use super::mark;
use super::mkfs::STORE_SECTOR_BYTES;
use super::snapshot::place;
use crate::mirror::{Directory, Done, Image, Listed, Mirror, Source};
use crate::output::{self, counted, note, printable, say};
use crate::{first_publish, image, keys, names, progress, size};

/// The exit code after an interrupt, by the convention of shells.
const EXIT_CODE: i32 = 130;

/// Make a tree a version of a volume in an object store
///
/// Makes the volume match the tree, and keeps the result as the version NAME, which any number of machines
/// can mount. The volume is created if it does not exist. One that has files but no version is refused, since
/// nothing would keep the files: make a version of it first (cffs snapshot create). Only differences are
/// sent: a file with the same type, size and modification time counts as unchanged, and files that are gone
/// from the tree are removed from the volume; kept versions still have them. After an interruption, the same
/// command continues where it stopped. If it was killed, the volume was not released, so the next run needs
/// --take-over.
///
/// The tree must not be changed meanwhile. A file in which only extended attributes have changed counts as
/// unchanged. If a file cannot be read, the version is not made.
///
/// With --since, the tree is one of a C-FFS volume with this mark, and only what changed since then is
/// compared: all files that cffs changes lists are copied, also if only extended attributes have changed. The
/// mark must have been set before the publishing of the last version of this tree began, or changes before
/// the mark can be missing, and only cffs publish may have changed the volume since. A mark is refused unless
/// a version was made in a later second. No other times are compared: changes in the second in which the mark
/// was set are exact.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs publish ./build s3://bucket/builds@4711
  cffs publish tree.cffs s3://bucket/tree@monday
  cffs publish mnt s3://bucket/tree@tuesday --since monday
  cffs mount s3://bucket/builds@4711 mnt       on any machine")]
pub struct Publish {
    /// The directory; or an image, a device or the URL of a volume, which is published as a whole.
    #[arg(value_name = "DIR|IMAGE|DEVICE|URL")]
    source: PathBuf,
    /// The volume, and the version's name: up to 128 letters, digits, '-', '_' and '.'.
    #[arg(value_name = "URL@NAME")]
    kept: PathBuf,
    /// Compare only what changed since this mark, which was set with cffs mark.
    #[arg(long, value_name = "NAME")]
    since: Option<String>,
    /// The capacity of the volume, if it is created. With --key-file or --key-command, it is then encrypted.
    #[arg(long, default_value = "1T", value_parser = size::parse)]
    size: u64,
    /// Take the volume over from a program that has not released it, for instance a publish that was killed.
    /// That program can no longer write to it.
    #[arg(long)]
    take_over: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

impl Publish {
    /// Sends the differences, and keeps the version.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let at = place(&self.kept)?;
        let of = || self.kept.display().to_string();
        let Some(name) = at.version() else {
            bail!("{} names no version; write {}@NAME", of(), of());
        };
        let mut source = self.source()?;
        let listed = match &self.since {
            Some(since) => {
                let of_source = || self.source.display().to_string();
                let marks = mark::marks(&self.source).with_context(of_source)?;
                let mark = marks.iter().find(|mark| mark.name == *since);
                let mark = mark.ok_or_else(|| mark::missing(since)).with_context(of_source)?;
                check_age(&at.volume(), mark).with_context(of)?;
                Some(source.listed(since).with_context(of_source)?)
            }
            None => None,
        };
        let (files, is_first, progress) = self.open(&at.volume(), name).with_context(of)?;
        progress.opened(files.volume());
        let done = self.send(&files, &mut source, listed, &progress);
        progress.sent(done.as_ref().is_ok_and(|done| done.failures == 0));
        let closed = files.close();
        let done = done?;
        closed.with_context(of)?;
        // This releases the volume.
        drop(files);
        if done.failures > 0 {
            let failed = counted(done.failures, "file");
            bail!(
                "{failed} could not be published completely, so version {name} was not created; publish it \
                 again"
            );
        }
        versions::create(&at).with_context(of)?;
        if is_first && let Err(error) = self.end_first(&at.volume()) {
            note!(
                "cffs publish: {}: the version was created, but the attribute of the first publish is still \
                 there, and the next publish removes it: {error:#}",
                of()
            );
        }
        self.print(&done)?;
        Ok(ExitCode::SUCCESS)
    }

    fn source(&self) -> anyhow::Result<From> {
        let directory = |path: PathBuf| {
            let of = path.display().to_string();
            Ok(From::Directory(Directory::open(path).context(of)?))
        };
        // If the source is mounted, its mount.
        let mounted = names::mounted(&self.source)?.filter(|_| !self.source.is_dir());
        if let Some(mounted) = mounted {
            return directory(mounted.path);
        }
        if Location::url_of(&self.source).is_none() {
            let path = self.source.canonicalize();
            let path = path.with_context(|| self.source.display().to_string())?;
            if path.is_dir() {
                return directory(path);
            }
        }
        // The key may be that of the published volume.
        let device = image::open_with_journal(&self.source, Access::ReadOnly, false, None)?;
        let volume = image::open_volume(&self.source, device, image::read_only())?;
        Ok(From::Image(Image::new(Files::new(volume))))
    }

    /// Opens or creates the volume; also returns whether this is the first publish to it. Fails before
    /// anything is sent if the version already exists.
    fn open(&self, volume: &Location, name: &str) -> anyhow::Result<(Files, bool, Arc<Progress>)> {
        let mut is_first = true;
        let kept = versions::list(volume);
        let progress = Progress::start(self.quiet || self.json)?;
        let device = match kept {
            Ok(kept) if kept.iter().any(|version| version.name == name) => {
                return Err(cffs_object::Error::VersionExists { name: name.to_owned() }.into());
            }
            Ok(kept) => {
                is_first = kept.is_empty();
                match LogDevice::open(volume, image::command_options(self.take_over)) {
                    // The first publish was interrupted while it made the volume.
                    Err(cffs_object::Error::Unmade { .. }) if is_first => self.make(volume)?,
                    opened => opened?,
                }
            }
            Err(cffs_object::Error::NoVolume { .. }) => self.make(volume)?,
            Err(error) => return Err(error.into()),
        };
        let uuid = device.uuid();
        let options = OpenOptions { take_over: self.take_over, ..OpenOptions::default() };
        let files = Files::new(image::open_volume(&self.kept, device, options)?);
        let begun = match is_first {
            true => first_publish::begin(&files, &uuid),
            // The first publish may have been interrupted after it had made the version.
            false => first_publish::forget(files.volume()),
        };
        if let Err(error) = begun {
            // The refusal is more important than an error of the close.
            let _ = files.close();
            return Err(error);
        }
        Ok((files, is_first, progress))
    }

    /// Opens the volume again, and removes the attribute of the first publish. The version must exist: a
    /// volume with files, but without a version and this attribute, is refused.
    fn end_first(&self, volume: &Location) -> anyhow::Result<()> {
        let device = LogDevice::open(volume, image::command_options(false))?;
        let opened = image::open_volume(&self.kept, device, OpenOptions::default())?;
        let forgotten = first_publish::forget(&opened);
        let closed = opened.close();
        forgotten?;
        Ok(closed?)
    }

    fn make(&self, volume: &Location) -> anyhow::Result<LogDevice> {
        names::check_unused(Path::new(&volume.volume_url()))?;
        let geometry = Geometry { size_bytes: self.size, sector_bytes: STORE_SECTOR_BYTES };
        keys::warn_of_weakness(volume.secret().as_deref());
        let device = LogDevice::create(volume, geometry)?;
        let options = MkfsOptions {
            now: SystemClock.now(),
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            ..MkfsOptions::default()
        };
        mkfs::make(&device, &options)?;
        Ok(device)
    }

    fn send(
        &self,
        files: &Files,
        source: &mut From,
        listed: Option<Listed>,
        progress: &Progress,
    ) -> anyhow::Result<Done> {
        let mirror = |source: &mut dyn Source| {
            let watch = |path: &[u8], failed: Option<&CopyCause>| progress.watch(path, failed);
            let done = Mirror::new(files, source, &watch).since(listed).run();
            done.map_err(|cause| CopyError { path: self.kept.clone(), cause }.into())
        };
        match source {
            From::Directory(directory) if files.read_dir("/")?.is_empty() => {
                let options = CopyOptions::default();
                let made = files::import(files, directory.path(), b"/", &options, progress)?;
                Ok(Done {
                    copied: made.files
                        + made.directories
                        + made.symlinks
                        + made.hard_links
                        + made.special,
                    bytes: made.bytes,
                    failures: made.failures,
                    ..Done::default()
                })
            }
            From::Directory(directory) => mirror(directory),
            From::Image(image) => mirror(image),
        }
    }

    fn print(&self, done: &Done) -> anyhow::Result<()> {
        if self.json {
            return output::json(&json!({
                "copied": done.copied,
                "bytes": done.bytes,
                "same": done.same,
                "removed": done.removed,
            }));
        }
        if !self.quiet {
            say!(
                "{}: {} copied ({}), {} the same, {} removed",
                self.kept.display(),
                counted(done.copied, "entry"),
                size::show(done.bytes),
                done.same,
                done.removed
            )?;
        }
        Ok(())
    }
}

/// Fails unless a version was made after the mark was set.
fn check_age(volume: &Location, mark: &MarkStatus) -> anyhow::Result<()> {
    let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
    let versions = match versions::list(volume) {
        Err(cffs_object::Error::NoVolume { .. }) => Vec::new(),
        listed => listed?,
    };
    let published = versions.iter().filter(|version| version.clone.is_none());
    let last = published.map(|version| seconds(version.made)).max();
    if last.is_none_or(|last| (last as i64) <= mark.set_at) {
        bail!(
            "no version was published after the mark {} was set, in a later second, so changes before it may \
             be missing; publish without --since",
            mark.name
        );
    }
    Ok(())
}

/// The progress of a publish, on the screen and for interrupts.
///
/// The first SIGINT or SIGTERM closes the volume as soon as it is open, so that the next publish need not
/// take it over, and ends the program. Once sending has ended, it has no effect. A second one ends the
/// program at once.
struct Progress {
    bar: ProgressBar,
    stage: Mutex<Stage>,
}

enum Stage {
    Opening,
    Sending(Arc<Volume>),
    Completing {
        all_sent: bool,
    },
    /// The volume is closed, and the program ends.
    Interrupted,
}

impl Progress {
    fn start(is_silent: bool) -> anyhow::Result<Arc<Progress>> {
        let flag = Arc::new(AtomicBool::new(false));
        let (mut heard, sender) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, EXIT_CODE, flag.clone())?;
            signal_hook::flag::register(signal, flag.clone())?;
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        let bar = progress::counter("publishing", None, "entries", is_silent);
        let progress = Arc::new(Progress { bar, stage: Mutex::new(Stage::Opening) });
        // The bar ends with the last reference, also if the publish fails.
        let interrupted = Arc::downgrade(&progress);
        thread::spawn(move || {
            if heard.read_exact(&mut [0]).is_ok()
                && let Some(progress) = interrupted.upgrade()
            {
                progress.interrupt();
            }
        });
        Ok(progress)
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interrupt(&self) {
        let mut stage = self.stage();
        self.bar.finish_and_clear();
        if let Stage::Completing { all_sent } = *stage {
            match all_sent {
                true => note!(
                    "cffs publish: interrupted after all files were sent; it ends when the version is \
                     complete"
                ),
                false => note!(
                    "cffs publish: interrupted after a failure; it ends when the volume is closed"
                ),
            }
            return;
        }
        note!(
            "cffs publish: interrupted; it ends when the volume is closed, and the same command continues \
             from here"
        );
        if let Stage::Sending(volume) = mem::replace(&mut *stage, Stage::Interrupted) {
            drop(stage);
            end(&volume);
        }
    }

    /// The volume is open; ends the program if an interrupt came before.
    fn opened(&self, volume: &Arc<Volume>) {
        let mut stage = self.stage();
        match *stage {
            Stage::Interrupted => end(volume),
            _ => *stage = Stage::Sending(Arc::clone(volume)),
        }
    }

    /// The program closes the volume, and makes the version if all files were sent. After an interrupt, waits
    /// for the end of the program.
    fn sent(&self, all_sent: bool) {
        let mut stage = self.stage();
        if let Stage::Interrupted = *stage {
            drop(stage);
            loop {
                thread::park();
            }
        }
        *stage = Stage::Completing { all_sent };
        self.bar.finish_and_clear();
    }

    /// Shows a copied file, or a failure before an interrupt.
    fn watch(&self, path: &[u8], failed: Option<&CopyCause>) {
        match failed {
            None => self.bar.inc(1),
            Some(_) if matches!(*self.stage(), Stage::Interrupted) => {}
            Some(cause) => self.bar.suspend(|| note!("cffs: {}: {cause}", printable(path))),
        }
    }
}

impl Observer for Progress {
    fn copied(&self, path: &Path, _: u64) {
        self.watch(path.as_os_str().as_bytes(), None);
    }

    fn failed(&self, error: &CopyError) {
        self.watch(error.path.as_os_str().as_bytes(), Some(&error.cause));
    }
}

/// Ends the program after an interrupt.
fn end(volume: &Volume) -> ! {
    if let Err(error) = volume.close() {
        note!("cffs publish: closing the volume: {error}");
    }
    process::exit(EXIT_CODE)
}

/// The source: a directory or a volume.
enum From {
    Directory(Directory),
    Image(Image),
}

impl From {
    /// The changes since a mark.
    fn listed(&self, since: &str) -> anyhow::Result<Listed> {
        let mut listed = Listed::default();
        let add = |_, path: &[u8]| {
            listed.add(path);
            Ok(())
        };
        let tree = match self {
            From::Directory(directory) => Tree::Mounted(directory.path()),
            From::Image(image) => Tree::Opened(image.files(), b"/"),
        };
        tree.changes(since, add)?;
        Ok(listed)
    }
}
