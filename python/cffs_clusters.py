"""Clusters: contents of several files that are compressed together (FORMAT chapter 8).

The standard library has a decompressor of Zstandard from Python 3.14 on; before that, the program zstd(1) is
used.
"""

import shutil
import subprocess

from cffs_structures import Bad, is_sealed, table

CLUSTERS = 16
CLUSTER_BYTES_MAX = 262144

Cluster = table("Cluster", "4sIB3sII12s", "magic checksum codec reserved stored_bytes raw_bytes pad")


def decompress(data):
    """The bytes of one frame of Zstandard."""
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
    """The contents of the cluster that takes this run."""
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


def check_counts(counts, clusters, header_clusters, what):
    """What is wrong with the counts of references of a group: `clusters` has those that were found, by block."""
    if header_clusters != len(clusters):
        yield f"{what} counts {header_clusters} clusters, has {len(clusters)}"
    for block, count in enumerate(counts if header_clusters else b""):
        if count != clusters.get(block, 0):
            yield f"{what}: {count} references to the cluster in block {block}, there are {clusters.get(block, 0)}"
