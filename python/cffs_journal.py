"""The journal of a C-FFS volume (FORMAT chapter 15)."""

from cffs_structures import Bad, crc32c, is_sealed, table

Header = table("Header", "4sIQQI16sQ12s", "magic checksum sequence era blocks uuid previous reserved")
Record = table("Record", "4sIQQII", "magic checksum era sequence previous count")
Entry = table("Entry", "QII", "block checksum reserved")

EXTERNAL_JOURNAL, UNUSED_JOURNAL = 1, 2


def with_journal(file, sb, seed, is_clean):
    """The file of a volume, with the contents of its journal if they count."""
    if sb.journal_flags & UNUSED_JOURNAL or sb.journal_flags & EXTERNAL_JOURNAL and is_clean:
        return file
    if sb.journal_flags & EXTERNAL_JOURNAL:
        raise Bad("the last changes are in a journal on another device")
    return JournaledFile(file, sb, seed, is_clean)


class JournaledFile:
    """The file of a volume; blocks in the journal are read from there."""

    def __init__(self, file, sb, seed, is_clean):
        self.file, self.block_bytes, self.at = file, sb.block_bytes, 0
        self.noted, self.noted_era = 0 if is_clean else sb.journal_sequence, sb.journal_era
        self.start, self.blocks, self.seed = sb.journal_start, sb.journal_blocks, seed
        self.images = self.load()

    def seek(self, offset):
        self.at = offset

    def read(self, size):
        self.file.seek(self.at)
        data = bytearray(self.file.read(size))
        end = self.at + len(data)
        for block in range(self.at // self.block_bytes, -(-end // self.block_bytes)):
            if image := self.images.get(block):
                start = block * self.block_bytes
                first, last = max(start, self.at), min(start + self.block_bytes, end)
                data[first - self.at:last - self.at] = image[first - start:last - start]
        return bytes(data)

    def block(self, number):
        """A block of the journal."""
        self.file.seek((self.start + number) * self.block_bytes)
        return self.file.read(self.block_bytes)

    def era(self):
        headers = []
        for data in (self.block(0), self.block(1)):
            header = Header(data)
            is_valid = header.magic == b"CFlh" and is_sealed(data, self.seed)
            if is_valid and header.blocks == self.blocks and header.sequence < 2**64 - 1:
                headers.append(header)
        if not headers:
            raise Bad("the journal has no valid header")
        header = max(headers, key=lambda header: header.sequence)
        if self.noted and header.sequence not in (self.noted, self.noted + 1):
            raise Bad("the journal and the volume are of different times: "
                      f"header {header.sequence}, noted {self.noted}")
        era = header.era if header.sequence == self.noted else header.previous
        if self.noted and era != self.noted_era:
            raise Bad("the journal is that of another copy of the volume: "
                      f"era {era:016x}, noted {self.noted_era:016x}")
        return header.era

    def load(self):
        """Loads the last image of each block that is in a record."""
        found, previous = {}, 0
        records = self.records(self.era())
        for sequence in range(len(records)):
            at, record, data = records.get(sequence, (None, None, None))
            images = record and record.previous == previous and self.images_of(record, data, at)
            if not images:
                break
            found.update(images)
            previous = record.checksum
        return found

    def records(self, era):
        """The position and first block of each record of an era, by number. They may be in any order."""
        records = {}
        for at in range(2, self.blocks):
            data = self.block(at)
            record = Record(data)
            if (record.magic, record.era) == (b"CFlr", era) and is_sealed(data, self.seed):
                records[record.sequence] = at, record, data
        return records

    def images_of(self, record, data, at):
        """The images of a record; None if one is incomplete."""
        images = {}
        if at + record.count >= self.blocks:
            return None
        for number in range(record.count):
            entry = Entry(data, Record.size + number * Entry.size)
            image = self.block(at + 1 + number)
            if crc32c(image) != entry.checksum:
                return None
            images[entry.block] = image
        return images
