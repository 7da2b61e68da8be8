//! The servers that are compared, each on a volume of its own.
//!
//! Offers [`Contender`], which names a server, and [`Served`], a running server on an emulated disk.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tempfile::TempDir;

use super::calls::{self, Handle};
use super::client::Client;
use super::workload::Target;
use crate::disk::{Counters, Profile, Stroke};
use crate::peer;
use crate::serve::media::Media;
use crate::serve::server::{DiskServer, LoopDevice};

/// The address of the servers. For MOUNT, nfs-ganesha has a separate port.
const NFS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2049);
const MOUNT_OF_GANESHA: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 20_048);
/// How long a server may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(30);
const VOLUME_BYTES: u64 = 1 << 30;
/// The directory of nfs-ganesha's libraries in Debian's package.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A server and the file system below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Contender {
    Cffs,
    /// nfs-ganesha over ext4, with the defaults of both.
    Ganesha,
    /// nfs-ganesha over ext4 with `dirsync`: ext4 makes names durable before a system call returns.
    GaneshaDirsync,
}

impl Contender {
    pub const ALL: [Contender; 3] =
        [Contender::Cffs, Contender::Ganesha, Contender::GaneshaDirsync];

    fn is_cffs(self) -> bool {
        self == Contender::Cffs
    }

    fn options_of_ext4(self) -> &'static str {
        match self {
            Contender::GaneshaDirsync => "noatime,dirsync",
            _ => "noatime",
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contender::Cffs => "cffs",
            Contender::Ganesha => "ganesha",
            Contender::GaneshaDirsync => "ganesha, dirsync",
        })
    }
}

#[derive(Clone, Debug)]
pub struct Programs {
    pub cffs: PathBuf,
    /// The directory into which nfs-ganesha's packages were unpacked.
    pub ganesha: PathBuf,
}

impl Programs {
    fn ganesha(&self) -> Command {
        let mut command = Command::new(self.ganesha.join("usr/bin/ganesha.nfsd"));
        let own = self.ganesha.join("usr/lib/ganesha");
        let path = format!("{}:{}", own.display(), self.ganesha.join(LIBRARIES).display());
        command.env("LD_LIBRARY_PATH", path);
        command
    }

    /// The version that nfs-ganesha prints.
    pub fn ganesha_version(&self) -> Result<String> {
        let output = self.ganesha().arg("-v").output().context("start nfs-ganesha")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }
}

/// A server on an emulated disk.
///
/// The order of the fields matters: they are dropped in this order.
pub struct Served {
    contender: Contender,
    programs: Programs,
    profile: Profile,
    server: Option<Child>,
    is_mounted: bool,
    device: LoopDevice,
    disk: DiskServer,
    places: TempDir,
}

impl Served {
    /// Creates the disk, the block device and the file system, and starts the server. None of this takes disk
    /// time.
    pub fn start(
        contender: Contender,
        programs: &Programs,
        profile: Profile,
        scratch: &Path,
    ) -> Result<Served> {
        let places = TempDir::with_prefix_in("cffs-bench-", scratch)
            .with_context(|| format!("a directory in {}", scratch.display()))?;
        let below = places.path().join("served");
        fs::create_dir(&below)?;
        fs::create_dir(places.path().join("mnt"))?;
        let media = Media::open(&places.path().join("backing"), VOLUME_BYTES)?;
        let disk = DiskServer::start(profile, Stroke::Whole, media, &below)?;
        disk.pacer().become_profile(Profile::None);
        let device = LoopDevice::attach(disk.file(), profile, disk.request_bytes())?;
        let mut served = Served {
            contender,
            programs: programs.clone(),
            profile,
            server: None,
            is_mounted: false,
            device,
            disk,
            places,
        };
        served.make()?;
        served.serve()?;
        Ok(served)
    }

    /// Ends the server and removes everything.
    pub fn stop(mut self) -> Result<()> {
        self.set_free(true);
        self.end()
    }

    fn make(&self) -> Result<()> {
        let mut mkfs = match self.contender.is_cffs() {
            true => Command::new(&self.programs.cffs),
            false => Command::new("mkfs.ext4"),
        };
        match self.contender.is_cffs() {
            true => mkfs.args(["mkfs", "-q"]),
            // Lazy initialization would run in the background of the measurement.
            false => mkfs.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
        };
        peer::run(mkfs.arg(self.device.path()))
    }

    fn mount_point(&self) -> PathBuf {
        self.places.path().join("mnt")
    }

    fn serve(&mut self) -> Result<()> {
        if !self.contender.is_cffs() {
            let mut mount = Command::new("mount");
            mount.args(["-t", "ext4", "-o", self.contender.options_of_ext4()]);
            peer::run(mount.arg(self.device.path()).arg(self.mount_point()))?;
            self.is_mounted = true;
        }
        let mut command = match self.contender.is_cffs() {
            true => self.cffs(),
            false => self.ganesha()?,
        };
        let log = fs::File::create(self.log())?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let server = command.spawn().with_context(|| format!("start {command:?}"))?;
        self.server = Some(server);
        self.wait_until_it_serves()
    }

    fn log(&self) -> PathBuf {
        self.places.path().join("log")
    }

    fn cffs(&self) -> Command {
        let mut command = Command::new(&self.programs.cffs);
        let address = NFS.to_string();
        command.args(["serve", "--foreground", "-o", "noatime", "--nfs", &address]);
        command.args(["--export", "/:insecure,no_root_squash"]).arg(self.device.path());
        command
    }

    fn ganesha(&self) -> Result<Command> {
        let place = self.places.path().display();
        let configuration = format!(
            "NFS_CORE_PARAM {{
                NFS_Protocols = 3; NFS_Port = {nfs}; MNT_Port = {mount};
                Enable_NLM = false; Enable_RQUOTA = false;
                Plugins_Dir = \"{plugins}\";
            }}
            NFSv4 {{
                UseGetpwnam = true; DomainName = localdomain; Graceless = true;
                RecoveryBackend = fs; RecoveryRoot = \"{place}/recovery\";
            }}
            NFS_KRB5 {{ Active_krb5 = false; }}
            EXPORT {{
                Export_Id = 1; Path = \"{path}\"; Pseudo = /volume;
                Access_Type = RW; Squash = No_Root_Squash; Protocols = 3; Transports = TCP;
                SecType = sys; FSAL {{ Name = VFS; }}
            }}\n",
            nfs = NFS.port(),
            mount = MOUNT_OF_GANESHA.port(),
            plugins = self.programs.ganesha.join(LIBRARIES).join("ganesha").display(),
            path = self.mount_point().display(),
        );
        let file = self.places.path().join("ganesha.conf");
        fs::write(&file, configuration)?;
        fs::create_dir_all(self.places.path().join("recovery"))?;
        let mut command = self.programs.ganesha();
        command.args(["-F", "-N", "NIV_WARN", "-L", "STDERR", "-f"]).arg(file);
        command.arg("-p").arg(self.places.path().join("pid"));
        Ok(command)
    }

    /// The address of MOUNT, and the exported path.
    fn export(&self) -> (SocketAddr, String) {
        match self.contender.is_cffs() {
            true => (NFS, String::from("/")),
            false => (MOUNT_OF_GANESHA, self.mount_point().display().to_string()),
        }
    }

    fn wait_until_it_serves(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let (mount, _) = self.export();
        loop {
            if [NFS, mount].into_iter().all(|address| TcpStream::connect(address).is_ok())
                && self.root().is_ok()
            {
                return Ok(());
            }
            let ended = self.server.as_mut().map_or(Ok(None), Child::try_wait)?;
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                bail!("{} does not serve; its log: {}", self.contender, log.trim());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server, so that everything is on the device.
    fn end(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            if let Some(pid) = i32::try_from(server.id()).ok().and_then(Pid::from_raw) {
                kill_process(pid, Signal::TERM).context("end the server")?;
            }
            let status = wait(&mut server)?;
            // Some versions of nfs-ganesha crash when they end; their data is in ext4 by then.
            if !status.success() && self.contender.is_cffs() {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                bail!("the server ended with {status}; its log: {}", log.trim());
            }
            if let Some(signal) = status.signal() {
                eprintln!("{} ended by signal {signal}", self.contender);
            }
        }
        if std::mem::take(&mut self.is_mounted) {
            peer::run(Command::new("umount").arg(self.mount_point()))?;
        }
        Ok(())
    }
}

/// Waits until a server has ended, and kills it if it does not end in time.
fn wait(server: &mut Child) -> Result<std::process::ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = server.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    server.kill()?;
    Ok(server.wait()?)
}

impl Target for Served {
    fn connect(&mut self) -> Result<Client> {
        Client::connect(NFS)
    }

    fn root(&mut self) -> Result<Handle> {
        let (address, path) = self.export();
        Client::connect(address)?.call(&calls::mount(&path), calls::mounted)
    }

    fn chill(&mut self) -> Result<()> {
        self.end()?;
        fs::write("/proc/sys/vm/drop_caches", "3").context("drop the kernel's caches")?;
        self.serve()
    }

    fn set_free(&self, free: bool) {
        let profile = if free { Profile::None } else { self.profile };
        if self.disk.pacer().profile() != profile {
            self.disk.pacer().become_profile(profile);
        }
    }

    fn counters(&self) -> Counters {
        self.disk.pacer().counters()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.set_free(true);
        if let Err(error) = self.end() {
            eprintln!("{}: {error:#}", self.contender);
        }
    }
}
