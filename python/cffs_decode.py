#!/usr/bin/env python3
"""Reads a C-FFS volume by docs/FORMAT.md alone.

This is an independent implementation: it shares no code with the file system, so if both agree on
a volume, the document is unambiguous there. It reads an image file or a device, checks every checksum and
every invariant of FORMAT chapter 13, and prints the tree:

    cffs_decode.py IMAGE              a tree for people, with extents and SHA-256 of contents
    cffs_decode.py --listing IMAGE    one line for each name, to compare with other programs

Exit status: 0 if the volume is valid, 1 if there are problems (on standard error), 2 if
it could not be read at all. Only the standard library is used, and zstd(1) for compressed contents.
"""

import argparse
import hashlib
import struct
import sys
import urllib.parse
from collections import Counter, namedtuple

from cffs_clusters import CLUSTERS, Clusters, decode_extent
from cffs_journal import EXTERNAL_JOURNAL, with_journal
from cffs_structures import Bad, are_inode_flags, crc32c, is_sealed, siphash13, table

ROOT, LOCATOR, EXTERNAL, SYSTEM, FIRST_USER = 1, 2, 3, 4, 16
CLEAN = 1
EMBED, INLINE_FEATURE, PROTECTION, JOURNAL = 1, 2, 4, 8
INLINE, CONTENT_CHECKSUM, INDEXED = 1, 2, 4
DIRECTORY, REGULAR, SYMLINK = 4, 8, 10
TYPES = {1: "p", 2: "c", 4: "d", 6: "b", 8: "-", 10: "l", 12: "s"}
INDEX_OFFSET_BYTES = 1 << 40


# The tables of the document, as struct formats and field names


Superblock = table("Superblock", "8sII16s64sIIIIIIIHBBQIIQQQQQII16sQQ"
                   "16s16s16s32sIIQBBHIQQQQIIQII16s16sIBB2sQQII64s", """magic checksum version
    uuid label compat ro_compat incompat block_bytes fragment_bytes sector_bytes segment_bytes
    inline_bytes_max policy state blocks cg_blocks cgs_made generation epoch free_fragments inodes
    inode_rotor cg_rotor mounts hash_seed made_at mounted_at checksum_seed holder_host holder_boot
    holder_name holder_pid holder_process_started holder_started errors_policy error_flags error_code
    error_count error_first_at error_last_at error_ino reserve_fragments reserve_uid reserve_gid
    journal_start journal_blocks journal_flags journal_uuid object_id intent_log_blocks codec
    compression_level pad journal_sequence journal_era marks marks_walked reserved""")
CylinderGroup = table("CylinderGroup", "4sIIIIIQII", """magic checksum cg free_fragments rotor
    bitmap_checksum generation clusters counts_checksum""")
Sector = table("Sector", "4sIQIIQHHHH",
               "magic checksum owner generation index epoch used count deferred reserved")
Entry = table("Entry", "HHIBBBB", "len slot hash name_len kind file_type flags")
Reference = table("Reference", "QI", "ino sector")
Inode = table("Inode", "QIHHIIIIQqqqqIIIIQQQIHHQQQQQBB3s3s", """ino generation mode flags uid gid nlink
    content_checksum size atime_seconds mtime_seconds ctime_seconds btime_seconds atime_nanoseconds
    mtime_nanoseconds ctime_nanoseconds btime_nanoseconds parent key hint_start hint_len data_len
    xattr_len special fragments change xattr_block map_root map_depth tag_count changed below""")
LinkTag = table("LinkTag", "QQIII", "epoch file sector count kind")
ExtentBlock = table("ExtentBlock", "4sIQIHBBQ16s",
                    "magic checksum owner generation count depth pad block reserved")
AttributeBlock = table("AttributeBlock", "4sIQIIQ",
                       "magic checksum owner generation list_bytes start")
IndexBucket = table("IndexBucket", "4sIQIIHHI",
                    "magic checksum owner generation bucket count flags reserved")
LocatorBlock = table("LocatorBlock", "4sIQH14s", "magic checksum index used reserved")
LocatorEntry = table("LocatorEntry", "QII", "file sector generation")



class File:
    """An inode, its data, attributes and tags, and its place."""

    def __init__(self, inode, data, xattrs, tags, place):
        self.inode, self.data, self.xattrs, self.tags = inode, data, xattrs, tags
        self.place = place
        self.extents = []
        self.tree_blocks = []

    @property
    def ino(self):
        return self.inode.ino

    @property
    def type(self):
        return self.inode.mode >> 12

    @property
    def inline(self):
        return bool(self.inode.flags & INLINE)


class Volume:
    """A volume, read from a file object. Problems that do not prevent further reading are collected."""

    def __init__(self, device):
        self.device = device
        self.problems = []
        self.superblock = sb = self.read_superblock(0)
        self.seed = crc32c(sb.checksum_seed)
        self.block_fragments = sb.block_bytes // sb.fragment_bytes
        self.cgs = -(-sb.blocks // sb.cg_blocks)
        bits = sb.cg_blocks * self.block_fragments
        self.bitmap_blocks = -(-bits // (8 * sb.block_bytes))
        self.count_blocks = -(-sb.cg_blocks // sb.block_bytes) if sb.incompat & CLUSTERS else 0
        self.used = {}
        self.clusters = Clusters(self)
        if sb.incompat & JOURNAL:
            self.device = with_journal(device, sb, self.seed, sb.state == CLEAN)

    def problem(self, text):
        self.problems.append(text)

    def read(self, offset, size):
        self.device.seek(offset)
        data = self.device.read(size)
        if len(data) != size:
            raise Bad(f"the device ends before byte {offset + size}")
        return data

    def read_block(self, block, count=1):
        size = self.superblock.block_bytes
        return self.read(block * size, count * size)

    def sealed(self, data, what, at=4, seed=None):
        """Checks the checksum of a metadata structure."""
        if not is_sealed(data, self.seed if seed is None else seed, at):
            raise Bad(f"{what}: wrong checksum")

    # Chapter 3

    def read_superblock(self, offset):
        data = self.read(offset, 512)
        sb = Superblock(data)
        if sb.magic != b"CFFS\r\n\x1a\n":
            raise Bad(f"no superblock at byte {offset}")
        self.sealed(data, f"superblock at byte {offset}", at=8, seed=crc32c(sb.uuid))
        if sb.version != 2 or sb.incompat >= 2 * CLUSTERS:
            raise Bad("a version or a feature that this program does not know")
        fragments = sb.blocks * (sb.block_bytes // sb.fragment_bytes)
        if sb.errors_policy > 2 or sb.reserve_fragments >= fragments:
            raise Bad(f"superblock at byte {offset}: a field out of its range")
        return sb

    # Chapter 2

    def cg_head_blocks(self, cg):
        sb = self.superblock
        is_here = sb.incompat & JOURNAL and not sb.journal_flags & EXTERNAL_JOURNAL
        has_journal = is_here and sb.journal_start // sb.cg_blocks == cg
        journal_blocks = sb.journal_blocks if has_journal else 0
        intent_log_blocks = 2 * sb.intent_log_blocks if cg == 0 else 0
        return 3 + self.bitmap_blocks + self.count_blocks + intent_log_blocks + journal_blocks

    def cg_len_blocks(self, cg):
        sb = self.superblock
        return min(sb.cg_blocks, sb.blocks - cg * sb.cg_blocks)

    def is_for_files(self, fragment):
        block = fragment // self.block_fragments
        cg, within = divmod(block, self.superblock.cg_blocks)
        return within >= self.cg_head_blocks(cg) and block < self.superblock.blocks - 2

    def copies(self):
        groups = {1}
        for base in (3, 5, 7):
            power = base
            while power < self.cgs:
                groups.add(power)
                power *= base
        for cg in sorted(groups):
            if cg < self.cgs and self.cg_len_blocks(cg) > self.cg_head_blocks(cg) + 2:
                yield cg * self.superblock.cg_blocks
        yield self.superblock.blocks - 2

    def claim(self, ino, start, count, what):
        """Records that fragments belong to an inode; each may belong to only one."""
        for fragment in range(start, start + count):
            if fragment in self.used:
                self.problem(f"inode {ino}: {what} has fragment {fragment}, which inode "
                             f"{self.used[fragment]} has too")
            elif not self.is_for_files(fragment):
                self.problem(f"inode {ino}: {what} has fragment {fragment}, not for files")
            self.used[fragment] = ino

    # Chapter 6

    def entries(self, data, owner, generation, index):
        """The entries of a sector: name, slot, type and either a File or a Reference."""
        what = f"inode {owner} sector {index}"
        header = Sector(data)
        if header.magic != b"CFse":
            raise Bad(f"{what}: no sector")
        self.sealed(data, what)
        if (header.owner, header.generation, header.index) != (owner, generation, index):
            raise Bad(f"{what}: it is another's")
        if header.deferred:
            raise Bad(f"{what}: deferred changes")
        at, last_slot, found = Sector.size, 0, []
        while at < header.used:
            entry = Entry(data, at)
            name_at = at + Entry.size
            body_at = name_at + entry.name_len
            end = at + entry.len
            if body_at > end or end > header.used or entry.slot <= last_slot or entry.flags:
                raise Bad(f"{what}: bad entry at byte {at}")
            name, body = data[name_at:body_at], data[body_at:end]
            self.check_name(what, owner, name, entry.hash)
            if entry.kind == 1:
                value = self.file(body, (owner, index))
                if value.type != entry.file_type:
                    raise Bad(f"{what}: the type of inode {value.ino} differs")
            elif entry.kind == 2 and len(body) == Reference.size and name:
                value = Reference(body)
            else:
                raise Bad(f"{what}: bad body at byte {at}")
            found.append((name, entry, value))
            at, last_slot = end, entry.slot
        if at != header.used or len(found) != header.count or any(data[at:]):
            raise Bad(f"{what}: the entries do not fill the used part")
        return found

    def check_name(self, what, owner, name, name_hash):
        if (owner in (EXTERNAL, SYSTEM)) != (not name):
            raise Bad(f"{what}: a name too many or too few")
        if b"/" in name or b"\0" in name or name in (b".", b".."):
            raise Bad(f"{what}: {name} is no name")
        expected = siphash13(self.superblock.hash_seed, name) & 0xFFFFFFFF if name else 0
        if name_hash != expected:
            self.problem(f"{what}: {name}: wrong hash")

    # Chapter 7

    def file(self, body, place):
        inode = Inode(body)
        area = max(inode.data_len, 32)
        tags_at = Inode.size + area + inode.xattr_len
        if tags_at + inode.tag_count * LinkTag.size != len(body) or inode.tag_count > 8:
            raise Bad(f"inode {inode.ino}: its parts do not fill the entry")
        data = body[Inode.size:Inode.size + inode.data_len]
        if any(body[Inode.size + inode.data_len:Inode.size + area]):
            self.problem(f"inode {inode.ino}: the data area is not padded with zeros")
        tags = [LinkTag(body, tags_at + i * LinkTag.size) for i in range(inode.tag_count)]
        file = File(inode, data, {}, tags, place)
        if file.type not in TYPES or not are_inode_flags(inode.flags, self.superblock.incompat):
            raise Bad(f"inode {inode.ino}: unknown type or flags")
        if file.inline:
            if file.type not in (REGULAR, SYMLINK) or inode.size != len(data) or inode.map_root:
                raise Bad(f"inode {inode.ino}: bad inline contents")
        else:
            self.read_map(file)
        file.xattrs = self.read_xattrs(file, body[Inode.size + area:tags_at])
        return file

    # Chapter 8

    def decode_extents(self, file, data):
        for place, start in struct.iter_unpack("<QQ", data):
            yield decode_extent(place, start, self.block_fragments, file.ino)

    def read_map(self, file):
        inode = file.inode
        extents = list(self.decode_extents(file, file.data))
        if inode.map_root:
            extents += self.read_tree(file, inode.map_root, inode.map_depth)
        file.extents = sorted(extents)
        for before, after in zip(file.extents, file.extents[1:]):
            if before.logical + before.len > after.logical:
                raise Bad(f"inode {inode.ino}: extents overlap")

    def read_tree(self, file, block, depth):
        what = f"inode {file.ino}: extent block {block}"
        data = self.read_block(block)
        node = ExtentBlock(data)
        if node.magic != b"CFxt":
            raise Bad(f"{what}: none")
        self.sealed(data, what)
        identity = (node.owner, node.generation, node.block, node.depth)
        if identity != (file.ino, file.inode.generation, block, depth):
            raise Bad(f"{what}: it is another's")
        file.tree_blocks.append(block)
        entries = data[ExtentBlock.size:ExtentBlock.size + 16 * node.count]
        if depth == 0:
            extents = list(self.decode_extents(file, entries))
            if not extents or extents != sorted(extents):
                raise Bad(f"{what}: not in order")
            return extents
        extents = []
        for logical, child in struct.iter_unpack("<QQ", entries):
            below = self.read_tree(file, child, depth - 1)
            if below[0].logical != logical or extents and extents[-1].logical >= logical:
                raise Bad(f"{what}: not in order")
            extents += below
        return extents

    def pieces(self, file, offset, size):
        """The bytes of a file from `offset` on, in pieces."""
        if file.inline:
            yield file.data[offset:offset + size]
            return
        fragment_bytes = self.superblock.fragment_bytes
        end = offset + size
        for extent in file.extents:
            first = extent.logical * fragment_bytes
            last = first + extent.len * fragment_bytes
            if last <= offset or first >= end:
                continue
            yield from zeros(first - offset)
            offset = max(offset, first)
            take = min(last, end) - offset
            if extent.unwritten:
                yield from zeros(take)
            elif extent.stored:
                yield self.clusters.contents(extent, offset - first, take)
            else:
                yield self.read(extent.start * fragment_bytes + offset - first, take)
            offset += take
        yield from zeros(end - offset)

    def contents(self, file, offset, size):
        return b"".join(self.pieces(file, offset, size))

    # Chapter 9

    def read_xattrs(self, file, data):
        word = file.inode.xattr_block
        if word:
            start, count = word & (1 << 48) - 1, word >> 48
            what = f"inode {file.ino}: attribute block {start}"
            fragment_bytes = self.superblock.fragment_bytes
            block = self.read(start * fragment_bytes, count * fragment_bytes)
            header = AttributeBlock(block)
            if header.magic != b"CFxa":
                raise Bad(f"{what}: none")
            self.sealed(block, what)
            identity = (header.owner, header.generation, header.start)
            if identity != (file.ino, file.inode.generation, start):
                raise Bad(f"{what}: it is another's")
            if data:
                raise Bad(f"{what}: there are attributes in the inode too")
            data = block[AttributeBlock.size:AttributeBlock.size + header.list_bytes]
        xattrs, at = {}, 0
        while at < len(data):
            long, head = data[at] == 0, data[at:at + 3].ljust(3, b"\0")
            name_len, value_len = (head[1], 65536) if long else struct.unpack("<BH", head)
            at = (value_at := at + 3 - long + name_len) + value_len
            if not name_len or at > len(data):
                raise Bad(f"inode {file.ino}: bad list of attributes")
            xattrs[data[value_at - name_len:value_at]] = data[value_at:at]
        return xattrs

    # Chapters 4, 10 and 11

    def system_files(self, block=1):
        sb = self.superblock
        found = {}
        data = self.read_block(block)
        for index in range(sb.block_bytes // sb.sector_bytes):
            sector = data[index * sb.sector_bytes:(index + 1) * sb.sector_bytes]
            for _, _, file in self.entries(sector, SYSTEM, 0, index):
                expected = 0 if sb.sector_bytes >= 1024 else file.ino - 1
                if index != expected:
                    self.problem(f"system inode {file.ino} in sector {index}")
                found[file.ino] = file
        if sorted(found) != [ROOT, LOCATOR, EXTERNAL]:
            raise Bad(f"the system area at block {block} has inodes {sorted(found)}")
        return found

    def container_entries(self, file):
        sb = self.superblock
        generation = 0 if file.ino == EXTERNAL else file.inode.generation
        if file.inode.size % sb.block_bytes:
            self.problem(f"inode {file.ino}: its size is not one of whole blocks")
        data = self.contents(file, 0, file.inode.size)
        for index in range(file.inode.size // sb.sector_bytes):
            sector = data[index * sb.sector_bytes:(index + 1) * sb.sector_bytes]
            for name, entry, value in self.entries(sector, file.ino, generation, index):
                yield index, name, entry, value

    def check_index(self, file, names):
        """`names` has the hash and sector of each entry."""
        buckets = file.inode.special >> 32
        if not file.inode.flags & INDEXED:
            if buckets:
                self.problem(f"inode {file.ino}: buckets without an index")
            return
        size = self.superblock.block_bytes
        power = 1
        while power < buckets:
            power *= 2

        def bucket_of(name_hash):
            bucket = name_hash % power
            return bucket if bucket < buckets else name_hash % (power // 2)

        expected = Counter((bucket_of(name_hash), name_hash, sector) for name_hash, sector in names)
        for bucket in range(buckets):
            what = f"inode {file.ino}: index bucket {bucket}"
            data = self.contents(file, INDEX_OFFSET_BYTES + bucket * size, size)
            header = IndexBucket(data)
            if header.magic != b"CFix":
                raise Bad(f"{what}: none")
            self.sealed(data, what)
            identity = (header.owner, header.generation, header.bucket)
            if identity != (file.ino, file.inode.generation, bucket):
                raise Bad(f"{what}: it is another's")
            at = IndexBucket.size
            listed = data[at:at + 8 * header.count]
            found = Counter((bucket, *entry) for entry in struct.iter_unpack("<II", listed))
            belong = Counter({key: n for key, n in expected.items() if key[0] == bucket})
            if found - belong or (belong - found and not header.flags & 1):
                self.problem(f"{what}: it does not list what it should")

    def walk(self):
        """Reads the whole tree: a list of (path, File), and all files by number."""
        self.system = self.system_files()
        self.files = dict(self.system)
        self.external_sectors = {}
        self.references = Counter()
        self.subdirectories = Counter()
        for index, _, _, file in self.container_entries(self.system[EXTERNAL]):
            self.add(file)
            self.external_sectors[file.ino] = index
        tree = [(b"/", self.system[ROOT])]
        todo = [(b"", self.system[ROOT])]
        walked = set()
        while todo:
            path, directory = todo.pop()
            if directory.ino in walked:
                raise Bad(f"directory {directory.ino} has two names")
            walked.add(directory.ino)
            names, seen = [], set()
            for index, name, entry, value in self.container_entries(directory):
                if name in seen:
                    self.problem(f"directory {directory.ino}: {name} twice")
                seen.add(name)
                names.append((entry.hash, index))
                file = value
                if isinstance(value, File):
                    self.add(file)
                    self.references[file.ino] += 1
                else:
                    file = self.files.get(value.ino)
                    if self.external_sectors.get(value.ino) != value.sector:
                        self.problem(f"directory {directory.ino}: {name} leads to nothing")
                        continue
                    self.references[value.ino] += 1
                    if file.type != entry.file_type:
                        self.problem(f"directory {directory.ino}: {name}: type differs")
                tree.append((path + b"/" + name, file))
                if file.type == DIRECTORY:
                    self.subdirectories[directory.ino] += 1
                    if file.inode.parent != directory.ino:
                        self.problem(f"inode {file.ino}: wrong parent")
                    todo.append((path + b"/" + name, file))
            if directory.inode.special & 0xFFFFFFFF != len(names):
                self.problem(f"directory {directory.ino}: wrong count of entries")
            self.check_index(directory, names)
        return sorted(tree, key=lambda item: item[0])

    def add(self, file):
        if file.ino in self.files or file.ino < FIRST_USER:
            self.problem(f"inode {file.ino} twice")
        self.files[file.ino] = file

    # Chapters 5, 12 and 13

    def check(self):
        """Checks all invariants of a clean volume; `walk` was called before."""
        sb = self.superblock
        for block in self.copies():
            copy = self.read_superblock(block * sb.block_bytes)
            fixed = ("block_bytes fragment_bytes sector_bytes cg_blocks hash_seed checksum_seed "
                     "intent_log_blocks")
            if copy.blocks < sb.blocks or any(
                    getattr(copy, field) != getattr(sb, field) for field in fixed.split()):
                self.problem(f"the copy in block {block} is another volume's")
            self.system_files(block + 1)
        for file in self.files.values():
            self.check_file(file)
        if sb.state == CLEAN:
            self.check_locator()
            self.check_groups()
            inodes = len(self.files) - len(self.system)
            if sb.inodes != inodes:
                self.problem(f"the superblock counts {sb.inodes} inodes, there are {inodes}")

    def check_file(self, file):
        inode = file.inode
        fragments = 0
        for extent in file.extents:
            length = extent.stored or extent.len
            if self.clusters.is_first(extent):
                self.claim(file.ino, extent.start, length, "an extent")
            group = self.superblock.cg_blocks * self.block_fragments
            if extent.start // group != (extent.start + length - 1) // group:
                self.problem(f"inode {file.ino}: an extent in two groups")
            fragments += extent.len
        for block in file.tree_blocks:
            self.claim(file.ino, block * self.block_fragments, self.block_fragments,
                       "an extent block")
            fragments += self.block_fragments
        count = inode.xattr_block >> 48
        self.claim(file.ino, inode.xattr_block & (1 << 48) - 1, count, "an attribute block")
        fragments += count
        if inode.fragments != fragments:
            self.problem(f"inode {file.ino} counts {inode.fragments} fragments, has {fragments}")
        if inode.flags & CONTENT_CHECKSUM:
            if file.inline or file.type != REGULAR:
                self.problem(f"inode {file.ino}: a checksum of contents that may have none")
            elif self.contents_crc(file) != inode.content_checksum:
                self.problem(f"inode {file.ino}: wrong checksum of the contents")
        self.check_tail(file)
        if file.ino >= FIRST_USER or file.ino == ROOT:
            names = self.references[file.ino]
            if file.type == DIRECTORY:
                expected = 2 + self.subdirectories[file.ino]
            else:
                expected = names
            if inode.nlink != expected:
                self.problem(f"inode {file.ino} has {inode.nlink} links, should {expected}")
            if not names and file.ino != ROOT:
                self.problem(f"inode {file.ino} has no name")
        if any(tag.epoch > self.superblock.epoch for tag in file.tags):
            self.problem(f"inode {file.ino}: a linktag that counts")

    def check_tail(self, file):
        """Bytes after the end of the contents are zeros, as far as they are mapped."""
        size, fragment_bytes = file.inode.size, self.superblock.fragment_bytes
        if not file.inline and file.type == REGULAR and size % fragment_bytes:
            if any(self.contents(file, size, fragment_bytes - size % fragment_bytes)):
                self.problem(f"inode {file.ino}: bytes after its end")

    def contents_crc(self, file):
        crc = 0
        for piece in self.pieces(file, 0, file.inode.size):
            crc = crc32c(piece, crc)
        return crc

    def check_locator(self):
        locator = self.system[LOCATOR]
        size = self.superblock.block_bytes
        if locator.inode.size % size:
            self.problem("the locator table does not have whole blocks")
        expected = {ino: (*file.place, file.inode.generation)
                    for ino, file in self.files.items() if ino >= FIRST_USER}
        per_block = (size - LocatorBlock.size) // LocatorEntry.size
        for block in range(locator.inode.size // size):
            data = self.contents(locator, block * size, size)
            if not any(data):
                continue
            header = LocatorBlock(data)
            if header.magic != b"CFlo" or header.index != block:
                raise Bad(f"locator table: block {block} is another")
            self.sealed(data, f"locator table: block {block}")
            used = 0
            for position in range(per_block):
                entry = LocatorEntry(data, LocatorBlock.size + position * LocatorEntry.size)
                if not entry.file:
                    continue
                used += 1
                ino = block * per_block + position
                if expected.pop(ino, None) != tuple(entry):
                    self.problem(f"locator table: inode {ino} is not in {entry}")
            if used != header.used:
                self.problem(f"locator table: block {block} counts {header.used}, has {used}")
        for ino in expected:
            self.problem(f"locator table: inode {ino} is missing")

    def check_groups(self):
        sb = self.superblock
        by_group = {}
        cg_fragments = sb.cg_blocks * self.block_fragments
        for fragment in self.used:
            by_group.setdefault(fragment // cg_fragments, set()).add(fragment % cg_fragments)
        free_in_all = 0
        for cg in range(self.cgs):
            used = by_group.get(cg, set())
            first = cg * cg_fragments
            length = self.cg_len_blocks(cg) * self.block_fragments
            head = min(self.cg_head_blocks(cg), self.cg_len_blocks(cg)) * self.block_fragments
            for_files = [f for f in range(head, length) if self.is_for_files(first + f)]
            free = len(for_files) - len(used)
            free_in_all += free
            if cg >= sb.cgs_made:
                if used:
                    self.problem(f"group {cg} is in use but was never made")
                continue
            what = f"group {cg}"
            block = self.read_block(cg * sb.cg_blocks + 2)
            header = CylinderGroup(block)
            if header.magic != b"CFcg" or header.cg != cg:
                raise Bad(f"{what}: no header")
            self.sealed(block, what)
            bitmap = self.read_block(cg * sb.cg_blocks + 3, self.bitmap_blocks)
            if crc32c(bitmap) != header.bitmap_checksum:
                self.problem(f"{what}: wrong checksum of the bitmap")
            found = int.from_bytes(bitmap, "little")
            expected = 0
            for fragment in for_files:
                if fragment not in used:
                    expected |= 1 << fragment
            if found != expected:
                lost = bin(expected & ~found).count("1")
                taken = bin(found & ~expected).count("1")
                self.problem(f"{what}: {lost} free fragments are not marked free, {taken} others are")
            self.problems.extend(self.clusters.check_group(header, first, length))
            if header.free_fragments != free:
                self.problem(f"{what} counts {header.free_fragments} free fragments, has {free}")
        if sb.free_fragments != free_in_all:
            self.problem(f"the superblock counts {sb.free_fragments} free fragments, "
                         f"there are {free_in_all}")


def zeros(count):
    """Zeros in pieces, so that a large hole takes no memory."""
    while count > 0:
        piece = min(count, 1 << 20)
        yield bytes(piece)
        count -= piece


def listing_line(volume, path, file):
    """A name with all properties that do not depend on placement."""
    inode = file.inode
    has_contents = file.type in (REGULAR, SYMLINK)
    times = " ".join(
        f"{getattr(inode, t + '_seconds')}.{getattr(inode, t + '_nanoseconds'):09}"
        for t in ("atime", "mtime", "ctime", "btime"))
    xattrs = ",".join(f"{name.hex()}={value.hex()}" for name, value in sorted(file.xattrs.items()))
    size = 0 if file.type == DIRECTORY else inode.size
    device = inode.special if TYPES[file.type] in "bc" else 0
    crc = volume.contents_crc(file) if has_contents else 0
    return (f"{urllib.parse.quote_from_bytes(path)} ino={inode.ino}.{inode.generation} mode={inode.mode:o} "
            f"nlink={inode.nlink} owner={inode.uid}:{inode.gid} size={size} device={device} "
            f"times={times} crc={crc:08x} xattrs={xattrs}")


def print_tree(volume, tree):
    sb = volume.superblock
    label = sb.label.rstrip(b"\0").decode("utf-8", "backslashreplace")
    print(f"volume {sb.uuid.hex()} \"{label}\", state {sb.state}, {sb.blocks} blocks of "
          f"{sb.block_bytes} bytes, {sb.inodes} inodes, {sb.free_fragments} free fragments of "
          f"{sb.fragment_bytes} bytes")
    for path, file in tree:
        inode = file.inode
        print(f"{TYPES[file.type]}{inode.mode & 0o7777:04o} {inode.nlink:3} {inode.uid:5} "
              f"{inode.gid:5} {inode.size:12} {path.decode('utf-8', 'backslashreplace')}")
        print(f"    inode {inode.ino} generation {inode.generation} in inode {file.place[0]} sector "
              f"{file.place[1]}, mtime {inode.mtime_seconds}.{inode.mtime_nanoseconds:09}")
        if file.type in (REGULAR, SYMLINK):
            digest = hashlib.sha256()
            for piece in volume.pieces(file, 0, inode.size):
                digest.update(piece)
            print(f"    sha256 {digest.hexdigest()}{' inline' if file.inline else ''}")
        for extent in file.extents:
            kind = " unwritten" if extent.unwritten else ""
            kind += f" in a cluster of {extent.stored}, from {extent.offset}" if extent.stored else ""
            print(f"    fragments {extent.logical}+{extent.len} at {extent.start}{kind}")
        for name, value in sorted(file.xattrs.items()):
            print(f"    {name.decode('utf-8', 'backslashreplace')} = {value.hex()}")


def main():
    parser = argparse.ArgumentParser(description="Decodes and checks a C-FFS volume.")
    parser.add_argument("--listing", action="store_true", help="one line for each name")
    parser.add_argument("image")
    arguments = parser.parse_args()
    try:
        with open(arguments.image, "rb") as device:
            volume = Volume(device)
            tree = volume.walk()
            volume.check()
            if arguments.listing:
                for path, file in tree:
                    print(listing_line(volume, path, file))
            else:
                print_tree(volume, tree)
    except (OSError, Bad, struct.error) as error:
        print(f"cffs_decode.py: {error}", file=sys.stderr)
        return 2
    for problem in volume.problems:
        print(f"cffs_decode.py: {problem}", file=sys.stderr)
    return 1 if volume.problems else 0


if __name__ == "__main__":
    sys.exit(main())
