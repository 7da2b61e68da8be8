"""pandas, pyarrow and zarr read and write images through fsspec. Each is skipped if it is missing.

They are imported in the tests, since importing takes longer than everything else here.
"""

import importlib.util
import os
import tempfile
import unittest

import pycffs


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"there is no {' and no '.join(missing)} here")


@needs("fsspec")
class DataFrames(unittest.TestCase):
    def setUp(self):
        import fsspec
        from pycffs.fsspec import CffsFileSystem

        fsspec.register_implementation("cffs", CffsFileSystem, clobber=True)
        self.addCleanup(CffsFileSystem.clear_instance_cache)
        scratch = self.enterContext(tempfile.TemporaryDirectory())
        self.image = os.path.join(scratch, "tree.cffs")
        pycffs.mkfs(self.image, 64 << 20)
        self.written = CffsFileSystem(self.image, read_only=False, skip_instance_cache=True)
        self.addCleanup(self.written.close)

    def read_only(self):
        """The image as another program opens it, after the writes are durable."""
        from pycffs.fsspec import CffsFileSystem

        self.written.close()
        files = CffsFileSystem(self.image, skip_instance_cache=True)
        self.addCleanup(files.close)
        return files

    @needs("pandas")
    def test_pandas_takes_a_url(self):
        import fsspec
        import pandas

        frame = pandas.DataFrame({"city": ["Ulm", "Trier"], "people": [128, 112]})
        with self.written.open("/people.csv", "w") as file:
            frame.to_csv(file, index=False)
        self.written.close()
        url = f"cffs://{self.image}!/people.csv"
        self.addCleanup(fsspec.core.url_to_fs(url)[0].close)
        self.assertTrue(pandas.read_csv(url).equals(frame))

    @needs("pyarrow")
    def test_pyarrow_reads_a_data_set_of_many_files(self):
        import pyarrow
        import pyarrow.dataset
        from pyarrow import fs, parquet

        for year in range(2020, 2026):
            self.written.makedirs(f"/rain/year={year}")
            months = list(range(12))
            table = pyarrow.table({"month": months, "mm": [year - 2000 + month for month in months]})
            with self.written.open(f"/rain/year={year}/part.parquet", "wb") as file:
                parquet.write_table(table, file)
        files = fs.PyFileSystem(fs.FSSpecHandler(self.read_only()))
        rain = pyarrow.dataset.dataset("/rain", filesystem=files, format="parquet", partitioning="hive")
        found = rain.to_table(filter=pyarrow.dataset.field("year") == 2024)
        self.assertEqual(found.num_rows, 12)
        self.assertEqual(found["mm"].to_pylist(), list(range(24, 36)))
        self.assertEqual(rain.count_rows(), 72)

    @needs("zarr")
    def test_zarr_keeps_its_chunks_as_files(self):
        import numpy
        import zarr
        from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

        values = numpy.arange(400, dtype="i4").reshape(20, 20)
        wrapped = AsyncFileSystemWrapper(self.written, asynchronous=True)
        store = zarr.storage.FsspecStore(wrapped, path="/grid")
        grid = zarr.create_array(store, shape=values.shape, chunks=(5, 5), dtype=values.dtype)
        grid[:] = values
        files = self.read_only()
        chunks = [path for path in files.find("/grid") if path.rpartition("/")[2].isdigit()]
        self.assertEqual(len(chunks), 16)
        part = zarr.open_array(f"cffs://{self.image}!/grid", mode="r")[3:17, 4:9]
        self.assertTrue(numpy.array_equal(part, values[3:17, 4:9]))


if __name__ == "__main__":
    unittest.main()
