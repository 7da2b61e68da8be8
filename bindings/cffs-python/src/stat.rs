//! Attributes.

use cffs::clock::Timestamp;
use cffs::vfs::types::Attr;
use pyo3::prelude::*;

/// The unit of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// The fields of [`Stat`] in order.
type Fields = (u64, u32, u32, u32, u32, u64, u64, i128, i128, i128, i128);

/// The attributes of a file. Each also has its name from `os.stat_result`.
#[pyclass(frozen, get_all, module = "pycffs")]
pub struct Stat {
    ino: u64,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    atime_ns: i128,
    mtime_ns: i128,
    ctime_ns: i128,
    birthtime_ns: i128,
}

impl From<Attr> for Stat {
    fn from(attr: Attr) -> Stat {
        let ns = |time: Timestamp| {
            i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
        };
        Stat {
            ino: attr.ino.0,
            mode: attr.mode(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            allocated: attr.allocated_bytes,
            atime_ns: ns(attr.atime),
            mtime_ns: ns(attr.mtime),
            ctime_ns: ns(attr.ctime),
            birthtime_ns: ns(attr.btime),
        }
    }
}

fn seconds(ns: i128) -> f64 {
    ns as f64 / 1e9
}

#[pymethods]
impl Stat {
    #[new]
    fn new(fields: Fields) -> Stat {
        let (
            ino,
            mode,
            nlink,
            uid,
            gid,
            size,
            allocated,
            atime_ns,
            mtime_ns,
            ctime_ns,
            birthtime_ns,
        ) = fields;
        Stat {
            ino,
            mode,
            nlink,
            uid,
            gid,
            size,
            allocated,
            atime_ns,
            mtime_ns,
            ctime_ns,
            birthtime_ns,
        }
    }

    /// For pickle.
    fn __getnewargs__(&self) -> (Fields,) {
        let Stat { ino, mode, nlink, uid, gid, size, allocated, .. } = *self;
        let Stat { atime_ns, mtime_ns, ctime_ns, birthtime_ns, .. } = *self;
        let fields = (
            ino,
            mode,
            nlink,
            uid,
            gid,
            size,
            allocated,
            atime_ns,
            mtime_ns,
            ctime_ns,
            birthtime_ns,
        );
        (fields,)
    }

    #[getter]
    fn st_ino(&self) -> u64 {
        self.ino
    }

    #[getter]
    fn st_mode(&self) -> u32 {
        self.mode
    }

    #[getter]
    fn st_nlink(&self) -> u32 {
        self.nlink
    }

    #[getter]
    fn st_uid(&self) -> u32 {
        self.uid
    }

    #[getter]
    fn st_gid(&self) -> u32 {
        self.gid
    }

    #[getter]
    fn st_size(&self) -> u64 {
        self.size
    }

    #[getter]
    fn st_blocks(&self) -> u64 {
        self.allocated / STAT_BLOCK_BYTES
    }

    #[getter]
    fn st_atime(&self) -> f64 {
        seconds(self.atime_ns)
    }

    #[getter]
    fn st_atime_ns(&self) -> i128 {
        self.atime_ns
    }

    #[getter]
    fn st_mtime(&self) -> f64 {
        seconds(self.mtime_ns)
    }

    #[getter]
    fn st_mtime_ns(&self) -> i128 {
        self.mtime_ns
    }

    #[getter]
    fn st_ctime(&self) -> f64 {
        seconds(self.ctime_ns)
    }

    #[getter]
    fn st_ctime_ns(&self) -> i128 {
        self.ctime_ns
    }

    #[getter]
    fn st_birthtime(&self) -> f64 {
        seconds(self.birthtime_ns)
    }

    fn __repr__(&self) -> String {
        format!("Stat(ino={}, mode=0o{:o}, size={})", self.ino, self.mode, self.size)
    }
}
