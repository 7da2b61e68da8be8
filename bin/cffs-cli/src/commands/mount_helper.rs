//! `mount.cffs`, `mount.fuse.cffs`: `cffs mount` with the command line of mount(8)'s helpers.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use super::mount::Mount;

/// Mount a C-FFS volume; called by mount(8)
///
/// mount -t cffs calls this, and so does an entry of the type cffs in fstab(5). It returns when the
/// volume can be used, and serves it in the background until it is unmounted.
#[derive(Debug, Parser)]
#[command(name = "mount.cffs", version)]
pub struct MountHelper {
    /// The image or the device; a block device also by LABEL= or UUID=.
    #[arg(value_name = "IMAGE|DEVICE")]
    source: PathBuf,
    /// The directory to mount on.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Ignore options that are not known.
    #[arg(short)]
    sloppy: bool,
    /// Do everything but the mount.
    #[arg(short)]
    fake: bool,
    /// Accepted without effect: no mtab is written.
    #[arg(short)]
    no_mtab: bool,
    /// Print whether requests arrive through io_uring or /dev/fuse.
    #[arg(short)]
    verbose: bool,
    /// Not supported: mount in the namespace itself.
    #[arg(short = 'N', value_name = "NAMESPACE", hide = true)]
    namespace: Option<OsString>,
    /// The type, as mount(8) was given it.
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    file_system_type: Option<OsString>,
    /// Mount options, comma-separated; see below.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

impl From<MountHelper> for Mount {
    fn from(helper: MountHelper) -> Mount {
        Mount {
            source: helper.source,
            directory: helper.directory,
            options: helper.options,
            sloppy: helper.sloppy,
            fake: helper.fake,
            verbose: helper.verbose,
            ..Mount::default()
        }
    }
}
