#!/usr/bin/env python3
"""Reads the intent log of a volume in use by docs/FORMAT.md alone (chapter 5).

    cffs_intent_log.py IMAGE    a line for each record: its kind and its fields

Shares no code with the file system. Prints nothing for a log without records, and "incomplete" if all must be
checked.
"""

import struct
import sys

from cffs_decode import Volume
from cffs_structures import is_sealed, table

LogSector = table("LogSector", "4sIQIHHI4s",
                  "magic checksum generation sequence used flags previous reserved")
# The fields of a record after the byte that gives its kind.
FIELDS = {1: "Q", 2: "I", 3: "QI", 4: "QIQ", 5: "QH", 6: "II", 7: "QI", 8: "", 9: "", 10: "QIB", 11: "QQB",
          12: "QIII", 13: "QIHH", 14: "QI", 15: "Q"}
END = 9


def records(volume):
    """The records that count, each a tuple of its kind and its fields; None if all must be checked."""
    sb = volume.superblock
    half = 3 + volume.bitmap_blocks + volume.count_blocks + sb.generation % 2 * sb.intent_log_blocks
    sectors = sb.intent_log_blocks * sb.block_bytes // sb.sector_bytes
    found, pending, previous = [], [], 0
    for sequence in range(sectors):
        data = volume.read(half * sb.block_bytes + sequence * sb.sector_bytes, sb.sector_bytes)
        header = LogSector(data)
        expected = (b"CFbl", sb.generation, sequence, previous)
        is_next = (header.magic, header.generation, header.sequence, header.previous) == expected
        if not is_next or not is_sealed(data, volume.seed, 4):
            break
        if header.flags & 1:
            return None
        previous = header.checksum
        at, end = LogSector.size, LogSector.size + header.used
        while at < end:
            kind = data[at]
            if kind not in FIELDS:
                return None
            fields = struct.unpack_from("<" + FIELDS[kind], data, at + 1)
            at += 1 + struct.calcsize("<" + FIELDS[kind])
            pending.append((kind, *fields))
            if kind == END:
                found += pending
                pending = []
    return found


def main():
    with open(sys.argv[1], "rb") as device:
        found = records(Volume(device))
    if found is None:
        print("incomplete")
    for record in found or []:
        print(*record)


if __name__ == "__main__":
    main()
