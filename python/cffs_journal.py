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
        # The journal of a clean volume has a valid header, and no records.
        era = self.era()
        self.images = {} if is_clean else self.load(era)

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
            is_own = (header.blocks, header.uuid) == (self.blocks, bytes(16))
            if is_valid and is_own and header.sequence < 2**64 - 1:
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

    def load(self, era):
        """Loads the last image of each block that is in a record."""
        found, previous, end = {}, 0, 0
        records = self.records(era)
        while end in records:
            at, record, data = records[end]
            images = record.previous == previous and self.images_of(record, data, at)
            if not images:
                break
            found.update(images)
            previous = record.checksum
            end += 1
        if any(sequence > end for sequence in records):
            raise Bad(f"the journal is damaged: later records follow record {end}")
        return found

    def records(self, era):
        """The position and first block of each record of an era, by number. They may be in any order."""
        records = {}
        count_max = (self.block_bytes - Record.size) // Entry.size
        for at in range(2, self.blocks):
            data = self.block(at)
            record = Record(data)
            is_of_era = (record.magic, record.era) == (b"CFlr", era) and 1 <= record.count <= count_max
            if is_of_era and is_sealed(data, self.seed):
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
            is_in_journal = self.start <= entry.block < self.start + self.blocks
            if crc32c(image) != entry.checksum or entry.block == 0 or is_in_journal:
                return None
            images[entry.block] = image
        return images
