//! `cffs inspect`: shows on-disk structures, for debugging.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use cffs::device::file::Access;
use cffs::format::cylinder_group::{CgHeader, bitmap_checksum};
use cffs::format::inode::InodeFlags;
use cffs::format::sector::{Body, Sector};
use cffs::format::xattr;
use cffs::units::{CgIndex, Container, InodeNo, SectorIndex};
use cffs_serve::describe;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{image, output};

pub mod reader;

use reader::{Found, Reader};

/// Show the on-disk structures of an image, for debugging
///
/// Changes nothing. docs/FORMAT.md explains each field.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs inspect tree.cffs superblock
  cffs inspect tree.cffs group 0
  cffs inspect tree.cffs path /src/main.rs
  cffs inspect tree.cffs inode 17
  cffs inspect tree.cffs sector 17:0       the first sector of directory 17
  cffs inspect tree.cffs sector system:0")]
pub struct Inspect {
    /// The image or the device, or the URL of a volume in an object store.
    #[arg(value_name = "IMAGE|DEVICE|URL")]
    image: PathBuf,
    /// The structure to show.
    #[command(subcommand)]
    what: What,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The superblock.
    Superblock,
    /// A cylinder group: its header and its runs of free fragments.
    Group {
        /// Its number, from 0.
        number: u32,
    },
    /// An inode, found through the locator table.
    Inode {
        /// Its number; 1 to 3 are the root, the locator table and the external inode table.
        number: u64,
    },
    /// The inode at a path, found through the directories.
    Path {
        /// The path within the volume.
        path: OsString,
    },
    /// The entries of a sector of a directory, of the external inode table (3) or of the system
    /// area (4).
    Sector {
        /// INODE:NUMBER, where INODE can be "external" or "system".
        #[arg(value_parser = parse_sector)]
        sector: Container,
    },
}

fn parse_sector(text: &str) -> Result<Container, String> {
    let wrong = || format!("'{text}' is not INODE:NUMBER, for instance 17:0 or external:3");
    let (file, sector) = text.split_once(':').ok_or_else(wrong)?;
    let file = match file {
        "system" => InodeNo::SYSTEM,
        "external" => InodeNo::EXTERNAL,
        "root" => InodeNo::ROOT,
        number => InodeNo(number.parse().map_err(|_| wrong())?),
    };
    Ok(Container { file, sector: SectorIndex(sector.parse().map_err(|_| wrong())?) })
}

impl Inspect {
    /// Reads the structure and prints it.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let device = image::open(&self.image, Access::ReadOnly, false)?;
        let shown = Reader::open(&device).and_then(|reader| self.what.read(&reader));
        let shown = shown.with_context(|| self.image.display().to_string())?;
        match self.json {
            true => output::json(&shown)?,
            false => output::key_values(&shown)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl What {
    fn read(&self, reader: &Reader<'_>) -> anyhow::Result<Value> {
        match self {
            What::Superblock => Ok(describe::superblock(reader.superblock())),
            What::Group { number } => match reader.cylinder_group(CgIndex(*number))? {
                Some((header, bitmap)) => Ok(group(reader, &header, &bitmap)),
                None => bail!("cylinder group {number} was never used"),
            },
            What::Inode { number } => inode(reader, &reader.inode(InodeNo(*number))?),
            What::Path { path } => inode(reader, &reader.path(path.as_bytes())?),
            What::Sector { sector } => Ok(entries(*sector, &reader.sector(*sector)?)),
        }
    }
}

fn group(reader: &Reader<'_>, header: &CgHeader, bitmap: &[u8]) -> Value {
    let start = reader.layout().block_start(reader.layout().cg_start(header.cg)).0;
    let fragments = reader.layout().cg_fragments(header.cg) as usize;
    let is_free = |index: usize| bitmap[index / 8] >> (index % 8) & 1 == 1;
    let mut free = Vec::new();
    let mut index = 0;
    while index < fragments {
        let len = (index..fragments).take_while(|index| is_free(*index)).count();
        if len > 0 {
            free.push(json!({ "start": start + index as u64, "len": len }));
        }
        index += len.max(1);
    }
    json!({
        "group": header.cg.0,
        "first_fragment": start,
        "fragments": fragments,
        "free_fragments": header.free_fragments,
        "rotor": header.rotor,
        "generation": header.generation,
        "bitmap_checksum_matches": header.bitmap_checksum == bitmap_checksum(bitmap),
        "free": free,
    })
}

fn inode(reader: &Reader<'_>, found: &Found) -> anyhow::Result<Value> {
    let inode = &found.inode;
    let flags = inode.inode_flags();
    let time = |seconds: i64, nanoseconds: u32| format!("{seconds}.{nanoseconds:09}");
    let extents: Vec<Value> = reader
        .extents(found)?
        .iter()
        .map(|extent| {
            json!({
                "logical": extent.logical,
                "start": extent.start.0,
                "len": extent.len,
                "unwritten": extent.unwritten,
                "cluster": extent.cluster.map(|of| json!({
                    "stored": of.stored,
                    "offset": of.offset,
                })),
            })
        })
        .collect();
    let xattrs: Vec<Value> = xattr::iter(&found.xattrs)
        .map(|attribute| match attribute {
            Ok((name, value)) => json!({ "name": output::printable(name), "bytes": value.len() }),
            Err(what) => json!({ "error": what }),
        })
        .collect();
    let tags: Vec<Value> = found
        .tags
        .iter()
        .map(|tag| {
            json!({
                "kind": format!("{:?}", tag.kind),
                "epoch": tag.epoch.0,
                "place": tag.place.to_string(),
                "count": tag.count,
            })
        })
        .collect();
    Ok(json!({
        "inode": inode.ino.get(),
        "generation": inode.generation.get(),
        "in": format!("{}:{}", found.container.file, found.container.sector),
        "slot": found.slot,
        "mode": format!("{:06o}", inode.mode.get()),
        "flags": flags.iter_names().map(|(name, _)| name).collect::<Vec<_>>(),
        "uid": inode.uid.get(),
        "gid": inode.gid.get(),
        "nlink": inode.nlink.get(),
        "size": inode.size.get(),
        "fragments": inode.fragments.get(),
        "atime": time(inode.atime_seconds.get(), inode.atime_nanoseconds.get()),
        "mtime": time(inode.mtime_seconds.get(), inode.mtime_nanoseconds.get()),
        "ctime": time(inode.ctime_seconds.get(), inode.ctime_nanoseconds.get()),
        "btime": time(inode.btime_seconds.get(), inode.btime_nanoseconds.get()),
        "parent": inode.parent.get(),
        "key": inode.key.get(),
        "hint": json!({ "start": inode.hint_start.get(), "len": inode.hint_len.get() }),
        "special": inode.special.get(),
        "change": inode.change.get(),
        "content_checksum": flags.contains(InodeFlags::CONTENT_CHECKSUM)
            .then(|| format!("{:08x}", inode.content_checksum.get())),
        "inline_bytes": flags.contains(InodeFlags::INLINE).then_some(found.data.len()),
        "map_root": inode.map_root.get(),
        "map_depth": inode.map_depth,
        "extents": extents,
        "xattrs": xattrs,
        "xattr_block": inode.xattr_block.get(),
        "linktags": tags,
    }))
}

fn entries(container: Container, image: &[u8]) -> Value {
    let sector = Sector::new(image);
    let entries: Vec<Value> = sector
        .entries()
        .map(|entry| {
            let body = match &entry.body {
                Body::Embedded(_) => String::from("embedded"),
                Body::Reference { sector, .. } => format!("external:{sector}"),
            };
            json!({
                "slot": entry.slot,
                "name": output::printable(entry.name),
                "hash": format!("{:08x}", entry.hash),
                "type": format!("{:?}", entry.file_type),
                "inode": entry.ino().0,
                "body": body,
            })
        })
        .collect();
    json!({
        "sector": format!("{}:{}", container.file, container.sector),
        "epoch": sector.epoch().0,
        "free_bytes": sector.free_bytes(),
        "entries": entries,
    })
}
