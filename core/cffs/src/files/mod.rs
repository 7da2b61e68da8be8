//! Files by path: the convenient side of the library.
//!
//! Offers [`Files`], a view of a [`Volume`] by path with the calls that `std::fs` has, [`File`] and [`Node`],
//! handles that hold a reference to an inode until they are dropped, [`Walk`], and [`import()`] and
//! [`export()`] of whole trees by several threads. Stands on the facade `vfs` and, for mounted volumes, on
//! `wire`. On an image, a call makes no system call if it needs nothing from the device.
//!
//! ```no_run
//! # fn main() -> cffs::error::Result<()> {
//! use cffs::files::Files;
//!
//! let files = Files::open_image("tree.cffs".as_ref(), Default::default())?;
//! files.make_dir_all("/notes/2026")?;
//! files.write("/notes/2026/today", b"proud")?;
//! for entry in files.walk("/notes")? {
//!     println!("{}", entry?.path.escape_ascii());
//! }
//! files.close()
//! # }
//! ```
//!
//! A volume that is mounted has the same interface: [`Files::attach`] connects to its server, which carries
//! out the calls, without the kernel.
//!
//! Paths are bytes with `/` between names. A leading `/` makes no difference, since all paths begin at the
//! root. Symbolic links are followed within the volume. Permissions are not checked for a program that opens
//! an image: it may do anything in it. An attached program has its own rights, as through the kernel. All
//! functions may be called from many threads at once; those of an attached program wait for each other.
//!
//! # Errors
//!
//! Every call that reads the volume can fail with [`Error::Io`], if the device does, with
//! [`Error::Corruption`], if what it reads contradicts the format, and with [`Error::Stale`] after
//! [`Files::close`]. Every call with a path can fail with [`Error::NotFound`] and [`Error::NotDirectory`], if
//! the path leads nowhere or through a file, with [`Error::NameTooLong`], and with [`Error::Loop`], if it
//! leads over too many symbolic links. Every call that changes something can fail with [`Error::ReadOnly`],
//! with [`Error::Latched`] or [`Error::Damaged`], if an earlier write failed or damage was found that forbids
//! changes, and with [`Error::NoSpace`]. The functions document what else they return. A change whose call
//! has returned is in memory. If it is lost, [`File::sync`] or [`Files::close`] fails.

use std::path::Path;
use std::sync::Arc;

use crate::clock::SystemClock;
use crate::device::{self, FileDevice};
use crate::error::{Error, Result};
use crate::host::SystemHost;
use crate::units::InodeNo;
use crate::vfs::Volume;
use crate::vfs::types::{Attr, NewKind, OpenOptions, SetAttr, StatFs};

pub mod attached;
mod bulk;
mod clone;
mod copy;
mod export;
mod file;
mod host;
mod import;
mod journal_device;
pub mod layout;
mod node;
mod places;
mod resolve;
mod survey;
mod walk;

#[cfg(test)]
mod tests;

pub use bulk::Batch;
pub use clone::{CloneError, CloneStep, CloneWatch, Cloned, May, Need, clone_tree};
pub use copy::{CopyCause, CopyError, CopyOptions, Observer, Summary, without_acl};
pub use export::export;
pub use file::File;
pub use import::{import, import_file, import_into};
pub use journal_device::{find_journal, journal_file};
pub use node::{Clears, Making, Node, Put};
pub use survey::{Survey, SurveyedVolume, survey};
pub use walk::{Walk, WalkEntry};

use attached::{AttachError, Session};

/// An entry of a directory, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    /// The name.
    pub name: Vec<u8>,
    /// Its inode.
    pub attr: Attr,
}

/// The files of a volume, by path. Cheap to clone.
#[derive(Clone)]
pub struct Files {
    home: Home,
    /// The image that was opened for this; other programs can open it again when this is closed.
    image: Option<Arc<FileDevice>>,
}

/// The side that carries out the calls.
#[derive(Clone)]
enum Home {
    /// A volume that this program has open.
    Volume(Arc<Volume>),
    /// The server of a mounted volume.
    Server(Arc<Session>),
}

impl Files {
    /// The files of a volume that is open.
    pub fn new(volume: Arc<Volume>) -> Files {
        Files { home: Home::Volume(volume), image: None }
    }

    /// Attaches this program to a directory of a mounted volume, which is then the root: paths and links
    /// cannot leave it. The program has its own rights, as through the kernel: new files belong to its user,
    /// and lose the permissions of its umask. Reading does not change access times.
    ///
    /// With [`Access::ReadOnly`](device::Access), each change fails with [`Error::ReadOnly`]. Calls that
    /// need the image, such as a clone, fail with [`Error::Mounted`]. After the end of the session, as at
    /// a restart of the server, and in a child after fork(2), every call fails with [`Error::Detached`].
    /// The volume cannot be unmounted until it is closed here, as if the program had a working directory
    /// in it.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn attach(directory: &Path, access: device::Access) -> Result<Files, AttachError> {
        Ok(Files { home: Home::Server(Session::attach(directory, access)?), image: None })
    }

    /// Opens an image or a block device exclusively (or read-only, together with other readers). A journal on
    /// another device is found as by the commands: in the file `IMAGE.journal`, or on a block device.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] of the kind [`ResourceBusy`](std::io::ErrorKind::ResourceBusy) if another program of
    /// this host has it open, and of others if it cannot be opened; those of
    /// [`open`](crate::open::open()).
    pub fn open_image(path: &Path, mut options: OpenOptions) -> Result<Files> {
        options.host.get_or_insert_with(|| Arc::new(SystemHost));
        let access = match options.read_only {
            true => device::Access::ReadOnly,
            false => device::Access::ReadWrite,
        };
        let image = Arc::new(FileDevice::open(path, access)?);
        let device = journal_device::with_its_journal(path, image.clone(), access)?;
        let volume = crate::open::open(device, Arc::new(SystemClock), options)?;
        Ok(Files { home: Home::Volume(Arc::new(volume)), image: Some(image) })
    }

    /// The volume itself.
    ///
    /// # Panics
    ///
    /// If the server of a mounted volume has it open: see [`Files::opened`].
    pub fn volume(&self) -> &Arc<Volume> {
        match &self.home {
            Home::Volume(volume) => volume,
            Home::Server(_) => panic!("the volume is open at its server"),
        }
    }

    /// The volume itself, if this program has it open.
    ///
    /// # Errors
    ///
    /// [`Error::Mounted`].
    pub fn opened(&self) -> Result<&Arc<Volume>> {
        match &self.home {
            Home::Volume(volume) => Ok(volume),
            Home::Server(_) => Err(Error::Mounted("unmount it, and open the image")),
        }
    }

    /// The root directory.
    pub fn root(&self) -> Node {
        match &self.home {
            Home::Volume(volume) => Node::root(volume),
            Home::Server(session) => Node::remote(session.root()),
        }
    }

    /// Makes everything durable.
    ///
    /// # Errors
    ///
    /// Whatever keeps something from the device, above all [`Error::Io`].
    pub fn sync(&self) -> Result<()> {
        match &self.home {
            Home::Volume(volume) => volume.sync(),
            Home::Server(session) => session.root().0.sync(),
        }
    }

    /// The sizes of the volume.
    ///
    /// # Errors
    ///
    /// Attached, those of fstatvfs(2).
    pub fn stat_fs(&self) -> Result<StatFs> {
        match &self.home {
            Home::Volume(volume) => Ok(volume.stat_fs()),
            Home::Server(session) => session.stat_fs(),
        }
    }

    /// Makes everything durable and closes the volume; later calls fail. An image that was opened for this
    /// can then be opened by other programs, even while handles of its files exist. Attached, it ends the
    /// session and makes nothing durable, like close(2).
    ///
    /// # Errors
    ///
    /// Any error of writing, above all [`Error::Io`]. Then changes since the last sync may be lost; the next
    /// opening recovers the volume.
    pub fn close(&self) -> Result<()> {
        let closed = match &self.home {
            Home::Volume(volume) => volume.close(),
            Home::Server(session) => {
                session.close();
                Ok(())
            }
        };
        let released = self.image.as_ref().map_or(Ok(()), |image| image.release());
        closed.and(released.map_err(Error::Io))
    }

    /// The inode at a path; a symbolic link at its end is followed.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; see the [module](self#errors).
    pub fn node(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        resolve::node(&self.root(), path.as_ref(), true)
    }

    /// The inode at a path; a symbolic link at its end is the answer.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; see the [module](self#errors).
    pub fn node_itself(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        resolve::node(&self.root(), path.as_ref(), false)
    }

    /// An inode by its number.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if no file has the number; [`Error::Mounted`].
    pub fn node_by_number(&self, ino: InodeNo) -> Result<Node> {
        let volume = self.opened()?;
        Ok(Node::adopt(volume, &volume.find(ino)?))
    }

    /// The attributes of the file at a path; a symbolic link at its end is followed.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; see the [module](self#errors).
    pub fn stat(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.node(path)?.attr()
    }

    /// The attributes of the file at a path; a symbolic link at its end is not followed.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; see the [module](self#errors).
    pub fn stat_itself(&self, path: impl AsRef<[u8]>) -> Result<Attr> {
        self.node_itself(path)?.attr()
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`]; [`Error::Invalid`] if it is neither that nor a regular file.
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.make_dir("/d")?;
    /// assert!(matches!(files.open("/d"), Err(Error::IsDirectory)));
    /// assert!(matches!(files.open("/d/f"), Err(Error::NotFound)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        File::of(self.node(path)?)
    }

    /// Makes an empty file, or empties the existing one, and opens it.
    ///
    /// # Errors
    ///
    /// Those of [`Files::open_or_create`].
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let (file, is_new) = self.found_or_made(path.as_ref(), self.new_file_permissions())?;
        if !is_new {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Opens a file, or makes an empty one with the lower 12 bits of a mode. As with open(2), a symbolic link
    /// at the end of the path is followed, and its target is made if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`]; [`Error::Invalid`] if something other than a regular file has the name.
    pub fn open_or_create(&self, path: impl AsRef<[u8]>, permissions: u32) -> Result<File> {
        self.found_or_made(path.as_ref(), permissions).map(|(file, _)| file)
    }

    /// The usual permissions of new files: on a mounted volume, the program's umask applies to them.
    pub fn new_file_permissions(&self) -> u32 {
        if self.root().is_attached() { 0o666 } else { 0o644 }
    }

    /// Also returns whether the file is new.
    fn found_or_made(&self, path: &[u8], permissions: u32) -> Result<(File, bool)> {
        let make = |path: &[u8]| self.make(path, NewKind::Regular, permissions & 0o7777);
        let (node, is_new) = resolve::node_or_new(&self.root(), path, make)?;
        Ok((File::of(node)?, is_new))
    }

    /// Makes an empty file with the lower 12 bits of a mode, and opens it.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] if anything has the name.
    pub fn create_new(&self, path: impl AsRef<[u8]>, permissions: u32) -> Result<File> {
        File::of(self.make(path.as_ref(), NewKind::Regular, permissions & 0o7777)?)
    }

    /// The contents of a file.
    ///
    /// # Errors
    ///
    /// Those of [`Files::open`].
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.write("/f", b"contents")?;
    /// assert_eq!(files.read("/f")?, b"contents");
    /// assert!(matches!(files.read("/f/"), Err(Error::NotDirectory)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        match self.read_at_once(&path) {
            Some(read) => read,
            None => self.open(path)?.contents(),
        }
    }

    /// Makes a file with these contents, or replaces those of the existing one.
    ///
    /// # Errors
    ///
    /// Those of [`Files::create`]. After [`Error::NoSpace`] the file has only a part of the contents.
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// assert!(matches!(files.write("/missing/f", b""), Err(Error::NotFound)));
    /// let more_than_fits = vec![1; 32 << 20];
    /// assert!(matches!(files.write("/f", &more_than_fits), Err(Error::NoSpace)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn write(&self, path: impl AsRef<[u8]>, contents: &[u8]) -> Result<()> {
        self.create(path)?.write_all_at(0, contents)
    }

    /// Makes a directory with permissions 0755, as [`Files::make_dir_with`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`].
    pub fn make_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.make_dir_with(path, 0o755)
    }

    /// Makes a directory with these permissions, as mkdir(2) does: it has the set-group-ID bit of the
    /// directory above, and if the library is attached, it loses the permissions of the program's umask.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`].
    pub fn make_dir_with(&self, path: impl AsRef<[u8]>, permissions: u32) -> Result<()> {
        self.make(path.as_ref(), NewKind::Directory, permissions & 0o1777).map(drop)
    }

    /// Makes a directory, and missing directories above it.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`] if something else has one of the names.
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.make_dir_all("/a/b/c")?;
    /// files.make_dir_all("/a/b/c")?;
    /// files.write("/a/f", b"")?;
    /// assert!(matches!(files.make_dir_all("/a/f/c"), Err(Error::NotDirectory)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn make_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.root().make_dir_all(path)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NameTooLong`] if the target is longer than 4095 bytes.
    pub fn symlink(&self, target: &[u8], path: impl AsRef<[u8]>) -> Result<()> {
        self.make(path.as_ref(), NewKind::Symlink(target), 0o777).map(drop)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is not a symbolic link.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.node_itself(path)?.read_link()
    }

    /// Gives a file another name.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]; [`Error::NotPermitted`] for a directory; [`Error::TooManyLinks`].
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.write("/f", b"")?;
    /// files.hard_link("/f", "/g")?;
    /// assert!(matches!(files.hard_link("/f", "/g"), Err(Error::Exists)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn hard_link(&self, path: impl AsRef<[u8]>, new_path: impl AsRef<[u8]>) -> Result<()> {
        let node = self.node_itself(path)?;
        let (dir, name) = resolve::parent_of_file(&self.root(), new_path.as_ref())?;
        dir.link(&node, &name).map(drop)
    }

    /// Renames a file, and replaces the one with the new name. A slash after either path requires a
    /// directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`] if a directory with entries has the new name; [`Error::IsDirectory`] and
    /// [`Error::NotDirectory`] if only one of the two is a directory; [`Error::Invalid`] if a directory would
    /// be moved below itself.
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.make_dir_all("/d/e")?;
    /// files.write("/f", b"")?;
    /// assert!(matches!(files.rename("/f", "/d"), Err(Error::IsDirectory)));
    /// assert!(matches!(files.rename("/d", "/d/e/d"), Err(Error::Invalid(_))));
    /// files.rename("/f", "/d/f")?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn rename(&self, path: impl AsRef<[u8]>, new_path: impl AsRef<[u8]>) -> Result<()> {
        let (path, new_path) = (path.as_ref(), new_path.as_ref());
        let (dir, name) = resolve::parent(&self.root(), path)?;
        let (new_dir, new_name) = resolve::parent(&self.root(), new_path)?;
        if path.ends_with(b"/") || new_path.ends_with(b"/") {
            resolve::require_directory(&dir.lookup(&name)?)?;
        }
        dir.rename(&name, &new_dir, &new_name)
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`]; [`Error::NotDirectory`] if a slash follows the name of another file.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        if path.ends_with(b"/") {
            self.node(path)?;
            return Err(Error::IsDirectory);
        }
        let (dir, name) = resolve::parent(&self.root(), path)?;
        dir.unlink(&name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`]; [`Error::NotDirectory`].
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.make_dir_all("/d/e")?;
    /// assert!(matches!(files.remove_dir("/d"), Err(Error::NotEmpty)));
    /// files.remove_dir("/d/e")?;
    /// files.remove_dir("/d")?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (dir, name) = resolve::parent(&self.root(), path.as_ref())?;
        dir.remove_dir(&name)
    }

    /// The entries of a directory, in the order in which they were made.
    ///
    /// # Errors
    ///
    /// [`Error::NotDirectory`].
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirItem>> {
        self.node(path)?.entries()
    }

    /// Everything at and below a path, each directory before its entries. Symbolic links are reported, not
    /// followed.
    ///
    /// # Errors
    ///
    /// Those of the first path. If a directory cannot be read, the item after its entry, or after those of
    /// its entries that could be read, is the error. [`Walk::unread`] names the directory, and the walk
    /// continues after it.
    ///
    /// ```
    /// # use cffs::files::Files;
    /// # use cffs::error::Error;
    /// # let device = std::sync::Arc::new(cffs::device::MemoryDevice::new(16 << 20));
    /// # cffs::mkfs::make(&device, &Default::default())?;
    /// # let clock = std::sync::Arc::new(cffs::clock::SystemClock);
    /// # let files = Files::new(std::sync::Arc::new(cffs::open(device, clock, Default::default())?));
    /// files.make_dir_all("/a/b")?;
    /// let paths: Result<Vec<_>, Error> =
    ///     files.walk("/a")?.map(|entry| entry.map(|entry| entry.path)).collect();
    /// assert_eq!(paths?, [b"/a".to_vec(), b"/a/b".to_vec()]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn walk(&self, path: impl AsRef<[u8]>) -> Result<Walk> {
        Walk::new(&self.root(), path.as_ref())
    }

    /// Changes attributes of the file at a path; a symbolic link at its end is followed.
    ///
    /// # Errors
    ///
    /// [`Error::IsDirectory`] for a size of a directory; [`Error::TooLarge`] beyond the largest size.
    pub fn set_attr(&self, path: impl AsRef<[u8]>, changes: &SetAttr) -> Result<()> {
        self.node(path)?.set_attr(changes)
    }

    fn make(&self, path: &[u8], kind: NewKind<'_>, permissions: u32) -> Result<Node> {
        let (dir, name) = match kind {
            NewKind::Directory => resolve::parent(&self.root(), path)?,
            NewKind::Regular if path.ends_with(b"/") => return Err(Error::IsDirectory),
            _ => resolve::parent_of_file(&self.root(), path)?,
        };
        dir.make(&name, &dir.new_file(kind, permissions)?)
    }
}
