//! The calls of a client that the workload needs (RFC 1813, 3.3 and appendix I).
//!
//! Answers of a server are not trusted: every decoder returns an error for invalid input.

use anyhow::{Context, Result, bail, ensure};
use nfs_wire::nfs::{ATTRIBUTES_BYTES, HANDLE_BYTES_MAX, NAME_BYTES_MAX, Stability};
use nfs_wire::xdr::{Reader, Writer};
use nfs_wire::{mount, nfs};

/// A file, as a server names it.
pub type Handle = Vec<u8>;

/// The verifier that a server returns with WRITE and COMMIT; it changes when unstable writes were lost.
pub type Verifier = [u8; 8];

/// The maximum bytes of names, and of all results, in a reply to READDIRPLUS, as requested by Linux's client.
const LISTING_NAMES_BYTES: u32 = 8 << 10;
const LISTING_BYTES: u32 = 32 << 10;
/// The longest reply to READ.
const READ_BYTES_MAX: u32 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Call {
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub arguments: Writer,
}

fn call(procedure: u32, arguments: impl FnOnce(&mut Writer)) -> Call {
    let mut w = Writer::default();
    arguments(&mut w);
    Call { program: nfs::PROGRAM, version: nfs::VERSION, procedure, arguments: w }
}

/// MNT: the handle of an exported directory.
pub fn mount(path: &str) -> Call {
    let mut arguments = Writer::default();
    arguments.opaque(path.as_bytes());
    Call { program: mount::PROGRAM, version: mount::VERSION, procedure: 1, arguments }
}

/// READ from the beginning.
pub fn read(file: &[u8], count: u32) -> Call {
    call(6, |w| {
        w.opaque(file);
        w.u64(0);
        w.u32(count);
    })
}

/// WRITE from the beginning, UNSTABLE.
pub fn write(file: &[u8], data: &[u8]) -> Call {
    call(7, |w| {
        w.opaque(file);
        w.u64(0);
        w.u32(data.len() as u32);
        w.u32(Stability::Unstable as u32);
        w.opaque(data);
    })
}

/// CREATE, in the mode GUARDED.
pub fn create(dir: &[u8], name: &str) -> Call {
    const GUARDED: u32 = 1;
    call(8, |w| {
        dir_entry(w, dir, name);
        w.u32(GUARDED);
        attributes(w, 0o644);
    })
}

pub fn make_dir(dir: &[u8], name: &str) -> Call {
    call(9, |w| {
        dir_entry(w, dir, name);
        attributes(w, 0o755);
    })
}

pub fn remove(dir: &[u8], name: &str) -> Call {
    call(12, |w| dir_entry(w, dir, name))
}

/// READDIRPLUS, from the end of an earlier one.
pub fn list(dir: &[u8], from: &Position) -> Call {
    call(17, |w| {
        w.opaque(dir);
        w.u64(from.cookie);
        w.fixed(&from.verifier);
        w.u32(LISTING_NAMES_BYTES);
        w.u32(LISTING_BYTES);
    })
}

/// COMMIT of a whole file.
pub fn commit(file: &[u8]) -> Call {
    call(21, |w| {
        w.opaque(file);
        w.u64(0);
        w.u32(0);
    })
}

fn dir_entry(w: &mut Writer, dir: &[u8], name: &str) {
    w.opaque(dir);
    w.opaque(name.as_bytes());
}

/// A mode, and no other attributes.
fn attributes(w: &mut Writer, mode: u32) {
    w.optional(Some(mode), Writer::u32);
    // Owner, group, size and both times are left to the server.
    (0..5).for_each(|_| w.u32(0));
}

/// The position at which a listing continues.
#[derive(Clone, Copy, Debug, Default)]
pub struct Position {
    cookie: u64,
    verifier: [u8; 8],
}

/// A part of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Names other than `.` and `..`, each with attributes and handle.
    pub names: u64,
    /// The position of the rest, if there is one.
    pub next: Option<Position>,
}

pub fn mounted(results: &[u8]) -> Result<Handle> {
    let mut r = Reader::new(results);
    succeeded(&mut r)?;
    Ok(r.opaque(HANDLE_BYTES_MAX)?.to_vec())
}

/// The handle that CREATE and MKDIR return.
pub fn made(results: &[u8]) -> Result<Handle> {
    let mut r = Reader::new(results);
    succeeded(&mut r)?;
    let handle = r.optional(|r| r.opaque(HANDLE_BYTES_MAX))?;
    handle.map(<[u8]>::to_vec).context("a file was created, but no handle was returned")
}

pub fn contents(results: &[u8]) -> Result<&[u8]> {
    let mut r = Reader::new(results);
    succeeded(&mut r)?;
    after(&mut r)?;
    let _count_and_end = (r.u32()?, r.bool()?);
    Ok(r.opaque(READ_BYTES_MAX)?)
}

/// The number of bytes that WRITE has accepted, and the verifier.
pub fn written(results: &[u8]) -> Result<(usize, Verifier)> {
    let mut r = Reader::new(results);
    succeeded(&mut r)?;
    change(&mut r)?;
    let (count, _stability) = (r.u32()?, r.u32()?);
    Ok((count as usize, r.array()?))
}

pub fn committed(results: &[u8]) -> Result<Verifier> {
    let mut r = Reader::new(results);
    succeeded(&mut r)?;
    change(&mut r)?;
    Ok(r.array()?)
}

pub fn removed(results: &[u8]) -> Result<()> {
    succeeded(&mut Reader::new(results))
}

/// Decodes the results of READDIRPLUS.
pub fn listed(results: &[u8]) -> Result<Listed> {
    let mut r = Reader::new(results);
    succeeded(&mut r)?;
    after(&mut r)?;
    let mut position = Position { cookie: 0, verifier: r.array()? };
    let (mut names, mut entries) = (0, 0);
    while r.bool()? {
        let _fileid = r.u64()?;
        let name = r.opaque(NAME_BYTES_MAX)?;
        position.cookie = r.u64()?;
        let attributes = r.optional(|r| r.fixed(ATTRIBUTES_BYTES))?;
        let handle = r.optional(|r| r.opaque(HANDLE_BYTES_MAX))?;
        entries += 1;
        if name != b"." && name != b".." {
            ensure!(
                attributes.is_some() && handle.is_some(),
                "a name was listed without its attributes or its handle"
            );
            names += 1;
        }
    }
    let is_end = r.bool()?;
    ensure!(is_end || entries > 0, "a listing makes no progress");
    Ok(Listed { names, next: (!is_end).then_some(position) })
}

fn succeeded(r: &mut Reader<'_>) -> Result<()> {
    match r.u32()? {
        0 => Ok(()),
        status => bail!("the server answered with status {status}"),
    }
}

/// Attributes after a call.
fn after(r: &mut Reader<'_>) -> Result<()> {
    r.optional(|r| r.fixed(ATTRIBUTES_BYTES))?;
    Ok(())
}

/// Attributes before and after a change.
fn change(r: &mut Reader<'_>) -> Result<()> {
    const BEFORE_BYTES: usize = 24;
    r.optional(|r| r.fixed(BEFORE_BYTES))?;
    after(r)
}
