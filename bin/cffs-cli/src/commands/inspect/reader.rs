//! Reads a volume's structures one at a time, using only the codecs of the format.
//!
//! Nothing is cached and nothing is trusted: if a structure is invalid, the codec's error is
//! returned, and other structures can still be read.

use anyhow::{Context, anyhow, bail};
use cffs::device::BlockDevice;
use cffs::error::Error;
use cffs::format::cylinder_group::CgHeader;
use cffs::format::extent::{Extent, MAP_DEPTH_MAX, Node};
use cffs::format::inode::{DiskInode, InodeFlags, LinkTag, Record};
use cffs::format::locator;
use cffs::format::sector::{self, Body, Sector};
use cffs::format::superblock::{SUPERBLOCK_BYTES, State};
use cffs::format::{Checksum, Layout, Superblock, checksum};
use cffs::journal::{self, JournaledDevice};
use cffs::units::{BlockNo, CgIndex, Container, InodeNo, SectorIndex};

use crate::output::{counted, note};

/// No file has more extents than this; more indicate a loop.
const EXTENTS_MAX: usize = 1 << 24;

/// Reads structures of the volume on a device.
pub struct Reader<'d> {
    device: Box<dyn BlockDevice + 'd>,
    superblock: Superblock,
    layout: Layout,
    checksum: Checksum,
}

/// An inode with the parts of its entry.
pub struct Found {
    /// The sector that contains it.
    pub container: Container,
    /// The entry's number in the sector.
    pub slot: u16,
    /// The fixed part.
    pub inode: DiskInode,
    pub data: Vec<u8>,
    /// Extended attributes embedded with it, encoded.
    pub xattrs: Vec<u8>,
    pub tags: Vec<LinkTag>,
}

impl<'d> Reader<'d> {
    /// Reads the superblock; if it is invalid, the copy at the end of the device.
    pub fn open(device: &'d dyn BlockDevice) -> anyhow::Result<Reader<'d>> {
        let size = device.geometry().size_bytes;
        if size < SUPERBLOCK_BYTES as u64 {
            bail!("not a C-FFS volume (only {size} bytes long)");
        }
        let superblock = match read_superblock(device, 0) {
            Ok(superblock) => superblock,
            Err(first) => match last_copy(device) {
                Some(copy) => {
                    note!("cffs: {first}; using the copy at the end of the device");
                    copy
                }
                None => return Err(first.into()),
            },
        };
        let layout = Layout::new(&superblock);
        let checksum = superblock.checksum();
        let device: Box<dyn BlockDevice + 'd> = match journal::has_journal(&superblock) {
            // Blocks at their final places can be read even if the journal is missing. Those of a volume that
            // was left clean are complete.
            true => {
                let medium = journal::medium(device, &superblock).unwrap_or_else(|why| {
                    if superblock.state != State::Clean {
                        note!("cffs: {why}; showing the block at its final place");
                    }
                    None
                });
                if medium.is_none() && journal::is_external(&superblock) {
                    return Ok(Reader { device: Box::new(device), superblock, layout, checksum });
                }
                let (journaled, doubt) = JournaledDevice::open_with(device, medium, &superblock);
                if let Some(doubt) = doubt {
                    note!("cffs: {doubt}; showing the state before the damage");
                }
                Box::new(journaled)
            }
            false => Box::new(device),
        };
        Ok(Reader { device, superblock, layout, checksum })
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The header of a group and its free bitmap; `None` for an unused group.
    pub fn cylinder_group(&self, cg: CgIndex) -> anyhow::Result<Option<(CgHeader, Vec<u8>)>> {
        if cg.0 >= self.layout.cgs() {
            bail!("the volume has only {} cylinder groups", self.layout.cgs());
        }
        if cg.0 >= self.superblock.cgs_made {
            return Ok(None);
        }
        let header = self.block(self.layout.cg_header(cg))?;
        let header = CgHeader::decode(&header, cg, self.checksum).map_err(Error::from)?;
        let offset = self.layout.block_offset(self.layout.cg_bitmap(cg));
        let len = self.layout.bitmap_blocks() as usize * self.layout.block_bytes as usize;
        Ok(Some((header, self.bytes(offset, len)?)))
    }

    /// An inode by its number: through the locator table, or from the system area.
    pub fn inode(&self, ino: InodeNo) -> anyhow::Result<Found> {
        let container = self.locate(ino)?;
        let image = self.sector(container)?;
        self.find(&image, container, |entry| entry == ino)
            .ok_or_else(|| anyhow!("inode {ino} is not in {container}, where it should be"))
    }

    /// The inode at a path, without the locator table. Symbolic links are not followed.
    pub fn path(&self, path: &[u8]) -> anyhow::Result<Found> {
        let mut found = self.inode(InodeNo::ROOT)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            found = self
                .name(&found, name)
                .with_context(|| format!("at {}", crate::output::printable(name)))?;
        }
        Ok(found)
    }

    fn name(&self, dir: &Found, name: &[u8]) -> anyhow::Result<Found> {
        let hash = checksum::name_hash(&self.superblock.hash_seed, name);
        let sectors = dir.inode.size.get() / u64::from(self.layout.sector_bytes);
        for index in 0..u32::try_from(sectors)? {
            let container = Container { file: dir.inode.number(), sector: SectorIndex(index) };
            let image = self.sector_of(dir, container)?;
            let Some(entry) = Sector::new(&image).find_name(hash, name) else { continue };
            return match entry.body {
                Body::Embedded(record) => Ok(found(container, entry.slot, &record)),
                Body::Reference { ino, sector } => {
                    let container = Container { file: InodeNo::EXTERNAL, sector };
                    let image = self.sector(container)?;
                    self.find(&image, container, |other| other == ino).ok_or_else(|| {
                        anyhow!("it refers to inode {ino}, which is not in {container}")
                    })
                }
            };
        }
        bail!("the name does not exist")
    }

    /// The verified image of a sector.
    pub fn sector(&self, container: Container) -> anyhow::Result<Vec<u8>> {
        if container.file == InodeNo::SYSTEM {
            let area = self.layout.block_offset(self.layout.system_area());
            let bytes = self.layout.sector_bytes;
            let offset = area + u64::from(container.sector.0) * u64::from(bytes);
            let image = self.bytes(offset, bytes as usize)?;
            sector::verify(&image, container, 0, self.checksum).map_err(Error::from)?;
            return Ok(image);
        }
        let owner = self.inode(container.file)?;
        self.sector_of(&owner, container)
    }

    fn sector_of(&self, owner: &Found, container: Container) -> anyhow::Result<Vec<u8>> {
        let bytes = u64::from(self.layout.sector_bytes);
        let offset = u64::from(container.sector.0) * bytes;
        if offset >= owner.inode.size.get() {
            let sectors = counted(owner.inode.size.get() / bytes, "sector");
            bail!("{container}: the file has only {sectors}");
        }
        let image = self.contents(owner, offset, bytes as usize)?;
        let generation = owner.inode.generation.get();
        sector::verify(&image, container, generation, self.checksum).map_err(Error::from)?;
        Ok(image)
    }

    fn find(
        &self,
        image: &[u8],
        container: Container,
        is: impl Fn(InodeNo) -> bool,
    ) -> Option<Found> {
        Sector::new(image).entries().find_map(|entry| match &entry.body {
            Body::Embedded(record) if is(record.inode.number()) => {
                Some(found(container, entry.slot, record))
            }
            _ => None,
        })
    }

    fn locate(&self, ino: InodeNo) -> anyhow::Result<Container> {
        if ino.is_system() {
            return Ok(self.layout.system_container(ino));
        }
        let table = self.inode(InodeNo::LOCATOR)?;
        let (index, position) = locator::position(ino, self.layout.block_bytes);
        let block_bytes = self.layout.block_bytes as usize;
        let offset = index * u64::from(self.layout.block_bytes);
        if offset >= table.inode.size.get() {
            bail!("no inode {ino}: the locator table ends before it");
        }
        let block = self.contents(&table, offset, block_bytes)?;
        if block.iter().all(|byte| *byte == 0) {
            bail!("no inode {ino}");
        }
        locator::verify(&block, index, self.checksum).map_err(Error::from)?;
        let entry = locator::get(&block, position);
        entry.container.ok_or_else(|| anyhow!("no inode {ino}"))
    }

    /// The extents of a file, in the order of the file.
    pub fn extents(&self, file: &Found) -> anyhow::Result<Vec<Extent>> {
        let mut extents = Vec::new();
        if file.inode.inode_flags().contains(InodeFlags::INLINE) {
            return Ok(extents);
        }
        let root = file.inode.map_root.get();
        if root != 0 {
            let depth = file.inode.map_depth;
            if depth > MAP_DEPTH_MAX {
                bail!("the extent tree has {depth} levels");
            }
            self.tree(file, BlockNo(root), depth, &mut extents)?;
        }
        extents.extend(Extent::decode_list(&file.data));
        extents.sort_by_key(|extent| extent.logical);
        Ok(extents)
    }

    fn tree(
        &self,
        file: &Found,
        block: BlockNo,
        depth: u8,
        extents: &mut Vec<Extent>,
    ) -> anyhow::Result<()> {
        let bytes = self.block(block)?;
        let (owner, generation) = (file.inode.number(), file.inode.generation.get());
        let node = Node::decode(&bytes, owner, generation, depth, block, self.checksum)
            .map_err(Error::from)?;
        match node {
            Node::Leaf(leaf) => extents.extend(leaf),
            Node::Inner(children) => {
                for child in children {
                    self.tree(file, child.block, depth - 1, extents)?;
                }
            }
        }
        if extents.len() > EXTENTS_MAX {
            bail!("the extent tree has no end");
        }
        Ok(())
    }

    /// A range of a file's contents; holes are zeros.
    fn contents(&self, file: &Found, offset: u64, len: usize) -> anyhow::Result<Vec<u8>> {
        let fragment_bytes = u64::from(self.layout.fragment_bytes);
        let mut contents = vec![0; len];
        for extent in self.extents(file)? {
            let start = extent.logical * fragment_bytes;
            let end = extent.logical_end() * fragment_bytes;
            let (from, to) = (start.max(offset), end.min(offset + len as u64));
            if from >= to || extent.unwritten {
                continue;
            }
            let on_device = extent.start.0 * fragment_bytes + (from - start);
            let part = &mut contents[(from - offset) as usize..(to - offset) as usize];
            self.device.read_at(on_device, part)?;
        }
        Ok(contents)
    }

    fn block(&self, block: BlockNo) -> anyhow::Result<Vec<u8>> {
        self.bytes(self.layout.block_offset(block), self.layout.block_bytes as usize)
    }

    fn bytes(&self, offset: u64, len: usize) -> anyhow::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.device.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

fn found(container: Container, slot: u16, record: &Record<'_>) -> Found {
    Found {
        container,
        slot,
        inode: *record.inode,
        data: record.data.to_vec(),
        xattrs: record.xattrs.to_vec(),
        tags: record.link_tags().collect(),
    }
}

fn read_superblock(device: &dyn BlockDevice, offset: u64) -> Result<Superblock, Error> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(offset, &mut bytes)?;
    Superblock::decode(&bytes, offset)
}

/// The copy near the end of the device, for any block size.
fn last_copy(device: &dyn BlockDevice) -> Option<Superblock> {
    let size_bytes = device.geometry().size_bytes;
    (12..=16).find_map(|shift| {
        let blocks = size_bytes >> shift;
        let offset = blocks.checked_sub(2)? << shift;
        read_superblock(device, offset).ok().filter(|copy| copy.blocks == blocks)
    })
}
