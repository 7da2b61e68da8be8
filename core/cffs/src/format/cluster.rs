//! Clusters: contents of neighbouring files, compressed as a unit (FORMAT: clusters).
//!
//! A cluster is one run of fragments: a header, the compressed bytes, and zeros up to the end of its last
//! fragment. An extent names the run and an offset in the expanded bytes. The expanded bytes of a file
//! begin at a whole fragment, so that all arithmetic in fragments holds for them as well.

use std::cell::RefCell;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Checksum;

/// The bytes of the header.
pub const CLUSTER_HEADER_BYTES: usize = 32;
/// The most bytes to which a cluster expands. A reader refuses more before it expands anything.
pub const CLUSTER_BYTES_MAX: usize = 256 << 10;
/// The most references to a cluster. Copies beyond it get contents of their own.
pub const REFERENCES_MAX: u8 = u8::MAX;

const MAGIC: u32 = u32::from_le_bytes(*b"CFcl");
const CHECKSUM_AT: usize = 4;
/// The codec that compressed a cluster: Zstandard, the only one so far.
const ZSTD: u8 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHeader {
    magic: U32,
    checksum: U32,
    codec: u8,
    reserved: [u8; 3],
    /// The bytes of the header and of the compressed contents.
    stored_bytes: U32,
    /// The bytes of the expanded contents.
    raw_bytes: U32,
    pad: [u8; 12],
}

const _: () = assert!(size_of::<DiskHeader>() == CLUSTER_HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(DiskHeader, checksum) == CHECKSUM_AT);

/// Compresses contents into clusters. It keeps the codec's working memory from one to the next.
pub struct Compressor(zstd::bulk::Compressor<'static>);

impl Compressor {
    /// A compressor of this level, as Zstandard counts them.
    ///
    /// # Errors
    ///
    /// Those of the codec: it finds no memory.
    pub fn new(level: i32) -> std::io::Result<Compressor> {
        Ok(Compressor(zstd::bulk::Compressor::new(level)?))
    }

    /// Whether the codec saves at least one of 64 bytes.
    pub fn shortens(&mut self, sample: &[u8]) -> bool {
        let mut shortened = vec![0; sample.len() - sample.len() / 64];
        self.0.compress_to_buffer(sample, &mut shortened).is_ok()
    }

    /// The bytes of the cluster with these contents; `None` if they exceed `stored_bytes_max`.
    pub fn encode(
        &mut self,
        raw: &[u8],
        stored_bytes_max: usize,
        checksum: Checksum,
    ) -> Option<Vec<u8>> {
        assert!(raw.len() <= CLUSTER_BYTES_MAX, "a cluster of {} bytes", raw.len());
        let mut bytes = vec![0; stored_bytes_max];
        let payload = bytes.get_mut(CLUSTER_HEADER_BYTES..)?;
        // The codec fails if the result does not fit.
        let len = self.0.compress_to_buffer(raw, payload).ok()?;
        bytes.truncate(CLUSTER_HEADER_BYTES + len);
        let header = DiskHeader {
            magic: MAGIC.into(),
            checksum: U32::ZERO,
            codec: ZSTD,
            reserved: [0; 3],
            stored_bytes: (bytes.len() as u32).into(),
            raw_bytes: (raw.len() as u32).into(),
            pad: [0; 12],
        };
        bytes[..CLUSTER_HEADER_BYTES].copy_from_slice(header.as_bytes());
        checksum.seal(&mut bytes, CHECKSUM_AT);
        Some(bytes)
    }
}

thread_local! {
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// The expanded size of the cluster that begins with these bytes; `None` if no cluster begins with them. Only
/// expanding the cluster shows whether it is damaged.
pub fn expanded_bytes(run: &[u8]) -> Option<usize> {
    let (header, _) = DiskHeader::ref_from_prefix(run).ok()?;
    let expanded = header.raw_bytes.get() as usize;
    let is_valid = header.magic.get() == MAGIC && (1..=CLUSTER_BYTES_MAX).contains(&expanded);
    is_valid.then_some(expanded)
}

/// Expands the cluster that was read from its whole run. Nothing of it is trusted: the checksum is compared
/// first, and the expanded bytes never exceed what the header says and [`CLUSTER_BYTES_MAX`] allows.
///
/// # Errors
///
/// The fault of the cluster.
pub fn decode(run: &[u8], checksum: Checksum) -> Result<Vec<u8>, &'static str> {
    let (header, _) = DiskHeader::ref_from_prefix(run).map_err(|_| "shorter than its header")?;
    if header.magic.get() != MAGIC {
        return Err("not a cluster");
    }
    let stored = header.stored_bytes.get() as usize;
    if !(CLUSTER_HEADER_BYTES..=run.len()).contains(&stored) {
        return Err("longer than its run");
    }
    if !checksum.verify(&run[..stored], CHECKSUM_AT) {
        return Err("checksum mismatch");
    }
    if header.codec != ZSTD {
        return Err("an unknown codec");
    }
    let raw_bytes = header.raw_bytes.get() as usize;
    if !(1..=CLUSTER_BYTES_MAX).contains(&raw_bytes) {
        return Err("it would expand to nothing, or to more than a cluster may hold");
    }
    let raw = expand(&run[CLUSTER_HEADER_BYTES..stored], raw_bytes);
    let raw = raw.map_err(|_| "its compressed bytes are damaged")?;
    if raw.len() != raw_bytes {
        return Err("it does not expand to its length");
    }
    Ok(raw)
}

fn expand(payload: &[u8], raw_bytes: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(zstd::bulk::Decompressor::new()?),
        };
        decompressor.decompress(payload, raw_bytes)
    })
}
