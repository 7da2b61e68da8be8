"""Clusters: contents of several files that are compressed together (FORMAT chapter 8).

The standard library decompresses Zstandard from Python 3.14 on; before that, the program zstd(1) is used.
"""

import shutil
import subprocess
from collections import namedtuple

from cffs_structures import Bad, crc32c, is_sealed, table

CLUSTERS = 16
CLUSTER_BYTES_MAX = 262144

# Of an extent in a cluster, `stored` is the length of the cluster's run, and `offset` how many fragments of
# its expanded contents lie before the extent; of another extent, both are 0.
Extent = namedtuple("Extent", "logical start len unwritten stored offset")
Cluster = table("Cluster", "4sIB3sII12s", "magic checksum codec reserved stored_bytes raw_bytes pad")


def decompress(data):
    """The contents of one Zstandard frame."""
    try:
        from compression import zstd
        return zstd.decompress(data)
    except ImportError:
        program = shutil.which("zstd")
    if not program:
        raise Bad("contents are compressed by Zstandard; install zstd")
    done = subprocess.run([program, "-dcq"], input=data, capture_output=True, check=False)
    if done.returncode:
        raise Bad(f"zstd: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def expand(run, seed, what):
    """The contents of the cluster in this run."""
    header = Cluster(run)
    if header.magic != b"CFcl" or header.codec != 1:
        raise Bad(f"{what}: no cluster, or of an unknown codec")
    if not Cluster.size <= header.stored_bytes <= len(run) or header.raw_bytes > CLUSTER_BYTES_MAX:
        raise Bad(f"{what}: a length out of its range")
    if not is_sealed(run[:header.stored_bytes], seed):
        raise Bad(f"{what}: wrong checksum")
    if any(run[header.stored_bytes:]):
        raise Bad(f"{what}: no zeros at its end")
    raw = decompress(run[Cluster.size:header.stored_bytes])
    if len(raw) != header.raw_bytes:
        raise Bad(f"{what}: it expands to {len(raw)} bytes, not {header.raw_bytes}")
    return raw


def decode_extent(place, start, block_fragments, ino):
    """An extent from its two words."""
    length, stored, offset = place >> 40, 0, 0
    if start >> 62 & 1:
        length, stored, offset = length & 4095, length >> 12, start >> 48 & 16383
    if not length or start >> 62 == 3 or start >> 62 == 1 and stored < block_fragments:
        raise Bad(f"inode {ino}: an extent that cannot be")
    return Extent(place & (1 << 40) - 1, start & (1 << 48) - 1, length, bool(start >> 63), stored, offset)


class Clusters:
    """The clusters of a volume: their contents, and the extents that refer to them."""

    def __init__(self, volume):
        self.volume = volume
        self.references = {}
        self.expanded = None, b""

    def contents(self, extent, offset, size):
        """Some of the bytes that an extent maps."""
        fragment_bytes = self.volume.superblock.fragment_bytes
        if self.expanded[0] != extent.start:
            run = self.volume.read(extent.start * fragment_bytes, extent.stored * fragment_bytes)
            raw = expand(run, self.volume.seed, f"cluster at fragment {extent.start}")
            self.expanded = extent.start, raw
        at = extent.offset * fragment_bytes + offset
        if at + size > len(self.expanded[1]):
            raise Bad(f"cluster at fragment {extent.start}: it ends before the file's contents")
        return self.expanded[1][at:at + size]

    def is_first(self, extent):
        """Counts the reference of an extent; false if another one refers to the same cluster."""
        if not extent.stored:
            return True
        run = extent.start, extent.stored
        self.references[run] = self.references.get(run, 0) + 1
        return self.references[run] == 1

    def check_group(self, header, first, length):
        """Problems of the reference counts of the group with these fragments."""
        volume = self.volume
        sb, what = volume.superblock, f"group {header.cg}"
        block = header.cg * sb.cg_blocks + 3 + volume.bitmap_blocks
        counts = volume.read_block(block, volume.count_blocks)
        found = {(start - first) // volume.block_fragments: count
                 for (start, _), count in self.references.items() if first <= start < first + length}
        if header.clusters != len(found):
            yield f"{what} counts {header.clusters} clusters, has {len(found)}"
        if header.counts_checksum != crc32c(counts):
            yield f"{what}: wrong checksum of the counts of references"
        for block, count in enumerate(counts):
            if count != found.get(block, 0):
                yield f"{what}: block {block} counts {count} references, has {found.get(block, 0)}"
