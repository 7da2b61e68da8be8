#!/usr/bin/env python3
"""Reads the intent log of a volume in use by docs/FORMAT.md alone (chapter 5).

    cffs_intent_log.py IMAGE    a line for each record: its kind and its fields

Shares no code with the file system. Prints nothing for a log without records, and "incomplete" if all must be
checked.
"""

import struct
import sys
from collections import Counter

from cffs_decode import Volume
from cffs_structures import is_sealed, table

LogSector = table("LogSector", "4sIQIHHI4s",
                  "magic checksum generation sequence used flags previous reserved")
# The fields of a record after the byte that gives its kind.
FIELDS = {1: "Q", 2: "I", 3: "QI", 4: "QIQ", 5: "QH", 6: "II", 7: "QI", 8: "", 9: "", 10: "QIB", 11: "QQB",
          12: "QIII", 13: "QIHH", 14: "QI", 15: "Q"}
END = 9
LINKS_MAX = 1000000000
# A sector that proves lost writes is before the next multiple of this in its half.
SEARCH_BYTES = 64 << 10


def records(volume):
    """The records that count, each a tuple of its kind and its fields; None if all must be checked."""
    sb = volume.superblock
    half = 3 + volume.bitmap_blocks + volume.count_blocks + sb.generation % 2 * sb.intent_log_blocks
    sectors = sb.intent_log_blocks * sb.block_bytes // sb.sector_bytes
    found, pending, previous = [], [], 0
    for sequence in range(sectors):
        data = volume.read(half * sb.block_bytes + sequence * sb.sector_bytes, sb.sector_bytes)
        header = LogSector(data)
        is_here = is_at(header, sb.generation, sequence)
        is_whole = is_sealed(data, volume.seed, 4)
        if is_here and not is_whole:
            return None
        if not is_here or header.previous != previous:
            return found if not proves_loss(volume, half, sequence, sectors) else None
        records = records_of(data)
        if header.flags or records is None:
            return None
        previous = header.checksum
        for record in records:
            pending.append(record)
            if record[0] == END:
                found += pending
                pending = []
    return found


def is_at(header, generation, sequence):
    """Whether a sector of the log says that it belongs here."""
    return (header.magic, header.generation, header.sequence) == (b"CFbl", generation, sequence)


def records_of(data):
    """The records in a sector; None if one is unknown or cut off."""
    at, end = LogSector.size, LogSector.size + LogSector(data).used
    records = []
    if end > len(data):
        return None
    while at < end:
        kind = data[at]
        after = at + 1 + struct.calcsize("<" + FIELDS.get(kind, ""))
        if kind not in FIELDS or after > end:
            return None
        records.append((kind, *struct.unpack_from("<" + FIELDS[kind], data, at + 1)))
        at = after
    return records


def proves_loss(volume, half, end, sectors):
    """Whether a sector after the end of the log has records of two epochs."""
    sb = volume.superblock
    step = SEARCH_BYTES // sb.sector_bytes
    for sequence in range(end, min(sectors, (end // step + 1) * step)):
        data = volume.read(half * sb.block_bytes + sequence * sb.sector_bytes, sb.sector_bytes)
        if is_at(LogSector(data), sb.generation, sequence) and is_sealed(data, volume.seed, 4):
            kinds = [record[0] for record in records_of(data) or []]
            if END in kinds[:-1]:
                return True
    return False


def is_explained(records):
    """Whether the records of directories in parts follow one of their directory, and do not contradict it."""
    whole = {record[1] for record in records if record[0] == 1}
    listed, counts, blocks = set(), {}, {}
    for kind, *fields in records:
        directory = fields[0] if fields else None
        if kind in (1, 12):
            listed.add(directory)
            if kind == 12:
                counts.setdefault(directory, fields[1:3])
        elif kind in (13, 14) and directory not in listed:
            return False
        elif kind == 13:
            blocks.setdefault((directory, fields[1]), fields[2:])
    names, subdirectories = Counter(), Counter()
    for (directory, _), (had, had_subdirectories) in blocks.items():
        names[directory] += had
        subdirectories[directory] += had_subdirectories
        if had_subdirectories > had and directory not in whole:
            return False
    for directory, (entries, all_subdirectories) in counts.items():
        rest = all_subdirectories - subdirectories[directory]
        is_possible = 0 <= rest <= entries - names[directory] and all_subdirectories < LINKS_MAX
        if not is_possible and directory not in whole:
            return False
    return True


def main():
    with open(sys.argv[1], "rb") as device:
        found = records(Volume(device))
    if found is not None and not is_explained(found):
        found = None
    if found is None:
        print("incomplete")
    for record in found or []:
        print(*record)


if __name__ == "__main__":
    main()
