"""A data set of small files in an image, for torch.utils.data.DataLoader.

    python3 dataset.py tree.cffs /set

An epoch goes over all samples in a new random order. The loader asks for a batch at a time by
`__getitems__`, as PyTorch 2 does, so that the batch's files are read in device order.
"""

import random
import sys
from collections.abc import Iterator

import pycffs


class ImageFiles:
    """The regular files below a directory of an image, by number."""

    def __init__(self, image: str, directory: str = "/") -> None:
        self.image = image
        self._volume: pycffs.Volume | None = None
        with pycffs.Volume(image, read_only=True) as volume:
            self.paths = [entry.path for entry in volume.walk(directory) if entry.is_file()]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> bytes:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[bytes]:
        if self._volume is None:
            # Here and not above: each of the loader's processes opens the image itself.
            self._volume = pycffs.Volume(self.image, read_only=True)
        return self._volume.read_many([self.paths[number] for number in numbers], threads=2)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_volume": None}


def epoch(files: ImageFiles, batch: int, seed: int, ahead: int = 16) -> Iterator[list[bytes]]:
    """The batches of an epoch, like those of a loader with shuffle=True and batch_size=batch.

    Its order is known from the beginning, so `ahead` batches are read at once: the more files a sweep of the
    device reads, the nearer to each other they are. They stay in memory until they are returned.
    """
    numbers = list(range(len(files)))
    random.Random(seed).shuffle(numbers)
    for start in range(0, len(numbers), batch * ahead):
        read = files.__getitems__(numbers[start : start + batch * ahead])
        yield from (read[at : at + batch] for at in range(0, len(read), batch))


if __name__ == "__main__":
    samples = ImageFiles(sys.argv[1], sys.argv[2])
    batches = [sum(map(len, batch)) for batch in epoch(samples, 256, seed=1)]
    print(f"{len(samples)} files, {sum(batches)} bytes, {len(batches)} batches")
