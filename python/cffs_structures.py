"""Common parts of a volume's structures: checksums, and fields in tables (FORMAT chapter 1)."""

import struct
from collections import namedtuple


class Bad(Exception):
    """An invalid structure."""


def crc_table():
    """The table of CRC-32C: polynomial 0x1edc6f41, reflected."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC_TABLE = crc_table()


def crc32c(data, crc=0):
    """The CRC-32C of `data`, continuing from that of the preceding bytes."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def siphash13(seed, data):
    """SipHash with one round for each word and three at the end."""
    mask = (1 << 64) - 1
    k0, k1 = struct.unpack("<QQ", seed)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D,
         k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotate(value, bits):
        return (value << bits | value >> (64 - bits)) & mask

    def sip_round():
        v[0] = (v[0] + v[1]) & mask
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] = (v[2] + v[3]) & mask
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & mask
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & mask
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)

    tail = len(data) % 8
    padded = data[len(data) - tail:] + bytes(7 - tail) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", data[:len(data) - tail] + padded):
        v[3] ^= word
        sip_round()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        sip_round()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def is_sealed(data, seed, at=4):
    """Whether four bytes of a metadata structure are its checksum."""
    zeroed = data[:at] + bytes(4) + data[at + 4:]
    return crc32c(zeroed, seed) == struct.unpack_from("<I", data, at)[0]


def table(name, layout, fields):
    record = namedtuple(name, fields)

    def decode(data, offset=0):
        return record(*struct.unpack_from("<" + layout, data, offset))

    decode.size = struct.calcsize("<" + layout)
    return decode


# The flags of inodes (FORMAT chapter 7). INLINE, CONTENT_CHECKSUM and INDEXED need no feature; IMMUTABLE and
# APPEND_ONLY need PROTECTION; COMPRESS and NO_COMPRESS need CLUSTERS.
INODE_FLAGS, PROTECTION_FLAGS, COMPRESSION_FLAGS = 1 | 2 | 4, 8 | 16, 32 | 64
PROTECTION_FEATURE, CLUSTERS_FEATURE = 4, 16


def are_inode_flags(flags, incompat):
    """Whether an inode may have these flags on a volume with these features."""
    known = INODE_FLAGS
    if incompat & PROTECTION_FEATURE:
        known |= PROTECTION_FLAGS
    if incompat & CLUSTERS_FEATURE:
        known |= COMPRESSION_FLAGS
    return not flags & ~known and flags & COMPRESSION_FLAGS != COMPRESSION_FLAGS
