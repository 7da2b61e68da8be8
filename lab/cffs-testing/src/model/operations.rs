//! The operations of a random run: small values, so that a failing run shrinks to few and simple
//! ones. Files, names and directories are chosen by a number modulo the number of existing ones.

use cffs::vfs::{AllocateMode, RenameMode, SeekFor, XattrMode};
use proptest::prelude::*;
use proptest::strategy::Union;

/// A number that chooses one of the existing objects.
pub type Pick = u16;

/// A name in a directory: usually an existing one, so that operations succeed.
#[derive(Clone, Debug)]
pub enum Name {
    /// One of all names of the tree, with its directory.
    Existing(Pick),
    /// A directory, and one of a few names, which may exist.
    Any(Pick, u8),
}

#[derive(Clone, Copy, Debug)]
pub enum MakeKind {
    Regular,
    Directory,
    Symlink(u16),
    Fifo,
    Socket,
    Char(u32),
    Block(u32),
}

#[derive(Clone, Debug)]
pub enum Op {
    Make(Name, MakeKind),
    MakeMany(Pick, u16),
    RemoveMany(Pick, u16),
    MakeUnnamed(Pick),
    Link(Pick, Name),
    Unlink(Name),
    RemoveDir(Name),
    Rename(Name, Name, RenameMode),
    Write(Pick, u64, u32, u8),
    Read(Pick, u64, u32),
    /// From a file and an offset, to a file and an offset, and the number of bytes.
    Copy(Pick, u64, Pick, u64, u64),
    Truncate(Pick, u64),
    Chmod(Pick, u16),
    SetTimes(Pick, u32),
    Allocate(Pick, u64, u64, AllocateMode),
    Seek(Pick, u64, SeekFor),
    SetXattr(Pick, u8, u32, XattrMode),
    RemoveXattr(Pick, u8),
    Lookup(Name),
    ReadDir(Pick, bool),
    ReadOn(Pick, u8),
    Release(Pick),
    Sync,
    SyncFile(Pick),
    WriteEarly,
    Reopen,
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        2 => any::<Pick>().prop_map(Name::Existing),
        3 => (any::<Pick>(), 0..24u8).prop_map(|(dir, name)| Name::Any(dir, name)),
    ]
}

/// Sizes and offsets at which behaviour changes: the capacity of an inode, of a fragment, of a
/// block, of a segment, of one write; and very large ones.
fn edge(far: bool) -> BoxedStrategy<u64> {
    let near = [0u64, 100, 450, 512, 1024, 2048, 4096, 8192, 16384, 65536, 131_072, 262_144];
    let mut edges: Vec<(u32, BoxedStrategy<u64>)> = near
        .into_iter()
        .map(|edge| (2, (-40i64..40).prop_map(move |d| edge.saturating_add_signed(d)).boxed()))
        .collect();
    edges.push((6, (0..20_000u64).boxed()));
    if far {
        edges.push((1, (0..3u64).prop_map(|far| (1 << 20) + (far << 38)).boxed()));
    }
    Union::new_weighted(edges).boxed()
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..600u32,
        3 => edge(false).prop_map(|len| len.min(70_000) as u32),
        1 => Just(300_000u32),
    ]
}

fn make_kind() -> impl Strategy<Value = MakeKind> {
    prop_oneof![
        8 => Just(MakeKind::Regular),
        4 => Just(MakeKind::Directory),
        2 => (1..4096u16).prop_map(MakeKind::Symlink),
        1 => Just(MakeKind::Fifo),
        1 => Just(MakeKind::Socket),
        1 => any::<u32>().prop_map(MakeKind::Char),
        1 => any::<u32>().prop_map(MakeKind::Block),
    ]
}

fn rename_mode() -> impl Strategy<Value = RenameMode> {
    prop_oneof![
        4 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        2 => Just(RenameMode::Exchange),
        1 => any::<bool>().prop_map(|no_replace| RenameMode::Whiteout { no_replace }),
    ]
}

fn allocate_mode() -> impl Strategy<Value = AllocateMode> {
    prop_oneof![
        Just(AllocateMode::Reserve),
        Just(AllocateMode::ReserveKeepSize),
        Just(AllocateMode::PunchHole),
        any::<bool>().prop_map(|keep_size| AllocateMode::ZeroRange { keep_size }),
    ]
}

fn xattr_mode() -> impl Strategy<Value = XattrMode> {
    prop_oneof![
        4 => Just(XattrMode::Any),
        1 => Just(XattrMode::Create),
        1 => Just(XattrMode::Replace),
    ]
}

fn xattr_len() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0..200u32, 3 => 200..5000u32, 1 => 5000..65_600u32]
}

pub fn op() -> impl Strategy<Value = Op> {
    let pick = any::<Pick>;
    prop_oneof![
        12 => (name(), make_kind()).prop_map(|(name, kind)| Op::Make(name, kind)),
        1 => (pick(), 1..150u16).prop_map(|(dir, count)| Op::MakeMany(dir, count)),
        1 => (pick(), 1..150u16).prop_map(|(dir, count)| Op::RemoveMany(dir, count)),
        1 => pick().prop_map(Op::MakeUnnamed),
        4 => (pick(), name()).prop_map(|(file, name)| Op::Link(file, name)),
        6 => name().prop_map(Op::Unlink),
        2 => name().prop_map(Op::RemoveDir),
        8 => (name(), name(), rename_mode()).prop_map(|(from, to, mode)| Op::Rename(from, to, mode)),
        16 => (pick(), edge(true), len(), any::<u8>())
            .prop_map(|(file, offset, len, seed)| Op::Write(file, offset, len, seed)),
        3 => (pick(), edge(true), len()).prop_map(|(file, at, len)| Op::Read(file, at, len)),
        5 => (pick(), edge(true), pick(), edge(true), edge(true))
            .prop_map(|(from, offset, to, at, len)| Op::Copy(from, offset, to, at, len)),
        5 => (pick(), edge(true)).prop_map(|(file, size)| Op::Truncate(file, size)),
        2 => (pick(), 0..0o10000u16).prop_map(|(file, mode)| Op::Chmod(file, mode)),
        1 => (pick(), any::<u32>()).prop_map(|(file, time)| Op::SetTimes(file, time)),
        5 => (pick(), edge(true), edge(false), allocate_mode())
            .prop_map(|(file, at, len, mode)| Op::Allocate(file, at, len, mode)),
        2 => (pick(), edge(true), prop_oneof![Just(SeekFor::Data), Just(SeekFor::Hole)])
            .prop_map(|(file, at, what)| Op::Seek(file, at, what)),
        4 => (pick(), 0..12u8, xattr_len(), xattr_mode())
            .prop_map(|(file, name, len, mode)| Op::SetXattr(file, name, len, mode)),
        2 => (pick(), 0..12u8).prop_map(|(file, name)| Op::RemoveXattr(file, name)),
        4 => name().prop_map(Op::Lookup),
        1 => (pick(), any::<bool>()).prop_map(|(dir, plus)| Op::ReadDir(dir, plus)),
        3 => (pick(), 1..40u8).prop_map(|(dir, count)| Op::ReadOn(dir, count)),
        4 => pick().prop_map(Op::Release),
        4 => Just(Op::Sync),
        2 => pick().prop_map(Op::SyncFile),
        3 => Just(Op::WriteEarly),
        1 => Just(Op::Reopen),
    ]
}
