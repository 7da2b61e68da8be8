use std::collections::BTreeMap;

use super::*;
use crate::error::Corruption;
use crate::format::sector::{
    Body, Entry, SECTOR_HEADER_BYTES, Sector, before_deferred, defer_reference, defer_removal,
    entry_bytes, init, insert, insert_at, remove, replace, seal, settle, verify,
};

const DIR: Container = Container { file: InodeNo(50), sector: SectorIndex(2) };
const GENERATION: u32 = 9;
const EPOCH: EpochNo = EpochNo(5);

/// The contents of an entry, without borrowing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Inode { ino: u64, data: Vec<u8>, xattrs: Vec<u8> },
    Reference { ino: u64, sector: u32 },
}

impl Held {
    fn bytes(&self) -> usize {
        match self {
            Held::Inode { data, xattrs, .. } => Record::encoded_len(data.len(), xattrs.len(), 0),
            Held::Reference { .. } => 12,
        }
    }

    fn with_body<T>(&self, call: impl FnOnce(&Body<'_>) -> T) -> T {
        match self {
            Held::Inode { ino, data, xattrs } => {
                let inode = DiskInode {
                    flags: InodeFlags::INLINE.bits().into(),
                    size: (data.len() as u64).into(),
                    ..disk_inode(*ino)
                };
                call(&Body::Embedded(Record { inode: &inode, data, xattrs, tags: b"" }))
            }
            Held::Reference { ino, sector } => {
                call(&Body::Reference { ino: InodeNo(*ino), sector: SectorIndex(*sector) })
            }
        }
    }

    fn of(entry: &Entry<'_>) -> Held {
        match &entry.body {
            Body::Embedded(record) => Held::Inode {
                ino: record.inode.ino.get(),
                data: record.data.to_vec(),
                xattrs: record.xattrs.to_vec(),
            },
            Body::Reference { ino, sector } => Held::Reference { ino: ino.0, sector: sector.0 },
        }
    }

    fn ino(&self) -> u64 {
        match self {
            Held::Inode { ino, .. } | Held::Reference { ino, .. } => *ino,
        }
    }
}

/// An entry of the model: what is there, and what it becomes in the last phase.
#[derive(Clone, Debug)]
struct Modelled {
    name: Vec<u8>,
    held: Held,
    leaving: bool,
    becoming: Option<u32>,
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(Vec<u8>, Held),
    Remove(usize),
    Replace(usize, Held),
    DeferRemoval(usize),
    DeferReference(usize, u32),
    Settle,
}

fn held() -> impl Strategy<Value = Held> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max);
    prop_oneof![
        (16u64..1000, bytes(120), bytes(40)).prop_map(|(ino, data, xattrs)| Held::Inode {
            ino,
            data,
            xattrs
        }),
        (16u64..1000, any::<u32>()).prop_map(|(ino, sector)| Held::Reference { ino, sector }),
    ]
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let name = prop::collection::vec(b'a'..=b'z', 1..30);
    let one = prop_oneof![
        5 => (name, held()).prop_map(|(name, held)| Operation::Insert(name, held)),
        2 => any::<usize>().prop_map(Operation::Remove),
        2 => (any::<usize>(), held()).prop_map(|(at, held)| Operation::Replace(at, held)),
        1 => any::<usize>().prop_map(Operation::DeferRemoval),
        1 => (any::<usize>(), any::<u32>()).prop_map(|(at, to)| Operation::DeferReference(at, to)),
        1 => Just(Operation::Settle),
    ];
    prop::collection::vec(one, 0..60)
}

fn pick(model: &BTreeMap<u16, Modelled>, at: usize) -> Option<u16> {
    model.keys().copied().nth(at % model.len().max(1))
}

fn settle_model(model: &mut BTreeMap<u16, Modelled>) {
    model.retain(|_, entry| !entry.leaving);
    for entry in model.values_mut() {
        if let Some(sector) = entry.becoming.take() {
            entry.held = Held::Reference { ino: entry.held.ino(), sector };
        }
    }
}

/// The entries of an image: slot, name, body.
fn seen(image: &[u8]) -> Vec<(u16, Vec<u8>, Held)> {
    let entries = Sector::new(image).entries();
    entries.map(|entry| (entry.slot, entry.name.to_vec(), Held::of(&entry))).collect()
}

fn check_sealed(image: &[u8]) -> Vec<u8> {
    let mut sealed = image.to_vec();
    seal(&mut sealed, EPOCH, checksum());
    verify(&sealed, DIR, GENERATION, checksum()).unwrap();
    sealed
}

fn check_against(image: &[u8], model: &BTreeMap<u16, Modelled>) {
    let visible = |entry: &&Modelled| !entry.leaving;
    let expected: Vec<_> = model
        .iter()
        .filter(|(_, entry)| visible(entry))
        .map(|(slot, entry)| {
            let held = match entry.becoming {
                Some(sector) => Held::Reference { ino: entry.held.ino(), sector },
                None => entry.held.clone(),
            };
            (*slot, entry.name.clone(), held)
        })
        .collect();
    assert_eq!(seen(image), expected);
    let sector = Sector::new(image);
    assert_eq!(sector.count(), model.len());
    let deferred = model.values().any(|entry| entry.leaving || entry.becoming.is_some());
    assert_eq!(sector.has_deferred(), deferred);
    let used: usize =
        model.values().map(|entry| entry_bytes(entry.name.len(), entry.held.bytes())).sum();
    assert_eq!(sector.free_bytes(), image.len() - SECTOR_HEADER_BYTES - used);
    // Nothing of what went stays behind in the free part.
    assert!(image[SECTOR_HEADER_BYTES + used..].iter().all(|byte| *byte == 0));

    let mut before = image.to_vec();
    before_deferred(&mut before);
    let undone: Vec<_> =
        model.iter().map(|(slot, entry)| (*slot, entry.name.clone(), entry.held.clone())).collect();
    assert_eq!(seen(&check_sealed(&before)), undone);

    let mut after = image.to_vec();
    settle(&mut after);
    assert_eq!(seen(&check_sealed(&after)), expected);
}

fn apply(image: &mut [u8], model: &mut BTreeMap<u16, Modelled>, operation: Operation) {
    match operation {
        Operation::Insert(name, held) => {
            let fits = entry_bytes(name.len(), held.bytes()) <= Sector::new(image).free_bytes();
            let slot =
                held.with_body(|body| insert(image, hash(&name), &name, FileType::Regular, body));
            assert_eq!(slot.is_some(), fits);
            if let Some(slot) = slot {
                let entry = Modelled { name, held, leaving: false, becoming: None };
                assert!(model.insert(slot, entry).is_none());
            }
        }
        Operation::Remove(at) => {
            if let Some(slot) = pick(model, at) {
                remove(image, slot);
                model.remove(&slot);
            }
        }
        Operation::Replace(at, held) => {
            // An entry that leaves is not there any more for a change that would replace it.
            let Some(slot) = pick(model, at).filter(|slot| !model[slot].leaving) else { return };
            let Some(entry) = model.get_mut(&slot) else { return };
            let room = entry.held.bytes() + Sector::new(image).free_bytes();
            let replaced = held.with_body(|body| replace(image, slot, body));
            assert_eq!(replaced, held.bytes() <= room);
            if replaced {
                entry.held = held;
                entry.becoming = None;
            }
        }
        Operation::DeferRemoval(at) => {
            if let Some(slot) = pick(model, at) {
                defer_removal(image, slot);
                if let Some(entry) = model.get_mut(&slot) {
                    entry.leaving = true;
                }
            }
        }
        Operation::DeferReference(at, sector) => {
            let Some(slot) = pick(model, at) else { return };
            let Some(entry) = model.get_mut(&slot) else { return };
            defer_reference(image, slot, SectorIndex(sector));
            if let Held::Inode { .. } = entry.held {
                entry.becoming = Some(sector);
            }
        }
        Operation::Settle => {
            settle(image);
            settle_model(model);
        }
    }
}

fn hash(name: &[u8]) -> u32 {
    crate::format::checksum::name_hash(&[0; 16], name)
}

fn empty(container: Container) -> Vec<u8> {
    let mut image = vec![0xee; 2048];
    init(&mut image, container, GENERATION);
    image
}

proptest! {
    #[test]
    fn a_sector_does_what_a_map_does(operations in operations()) {
        let mut image = empty(DIR);
        let mut model = BTreeMap::new();
        for operation in operations {
            apply(&mut image, &mut model, operation);
            check_against(&image, &model);
        }
        for entry in model.values().filter(|entry| !entry.leaving) {
            let sector = Sector::new(&image);
            let found = sector.find_name(hash(&entry.name), &entry.name).unwrap();
            prop_assert_eq!(found.name, &entry.name[..]);
            prop_assert!(sector.find_name(!hash(&entry.name), &entry.name).is_none());
        }
    }

    /// Whatever `verify` accepts, readers get through, with slots that rise; and the writers work
    /// on it too.
    #[test]
    fn mutated_sectors_are_refused_or_usable(
        inserts in prop::collection::vec((prop::collection::vec(b'a'..=b'z', 1..9), held()), 1..5),
        mutations in mutations(),
    ) {
        let mut image = empty(DIR);
        for (name, held) in &inserts {
            held.with_body(|body| insert(&mut image, 0, name, FileType::Regular, body));
        }
        let used = image.len() - Sector::new(&image).free_bytes();
        mutate(&mut image, &mutations, 8..used + 20);
        checksum().seal(&mut image, 4);
        if verify(&image, DIR, GENERATION, checksum()).is_ok() {
            let slots: Vec<u16> = Sector::new(&image).entries().map(|entry| entry.slot).collect();
            prop_assert!(slots.is_sorted_by(|a, b| a < b));
            prop_assert_eq!(slots.len(), Sector::new(&image).count());
            if let Some(slot) = slots.first() {
                defer_removal(&mut image, *slot);
                settle(&mut image);
                seal(&mut image, EPOCH, checksum());
                verify(&image, DIR, GENERATION, checksum()).unwrap();
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_without_harm(
        mut image in prop::collection::vec(any::<u8>(), 0..600),
        sealed in any::<bool>(),
    ) {
        if image.len() >= SECTOR_HEADER_BYTES && sealed {
            image[..4].copy_from_slice(b"CFse");
            checksum().seal(&mut image, 4);
        }
        prop_assert!(verify(&image, DIR, GENERATION, checksum()).is_err());
    }
}

fn with_file(name: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut image = empty(DIR);
    let held = Held::Inode { ino: 99, data: b"data".to_vec(), xattrs: Vec::new() };
    held.with_body(|body| insert(&mut image, 7, name, FileType::Regular, body)).unwrap();
    seal(&mut image, EPOCH, checksum());
    change(&mut image);
    checksum().seal(&mut image, 4);
    image
}

#[test]
fn each_field_of_the_header_identifies_the_sector() {
    verify(&with_file(b"name", |_| {}), DIR, GENERATION, checksum()).unwrap();
    for (at, field) in [
        (0, "magic"),
        (8, "owner"),
        (16, "generation"),
        (20, "index"),
        (36, "count of deferred changes"),
    ] {
        match verify(&with_file(b"name", |i| i[at] ^= 1), DIR, GENERATION, checksum()) {
            Err(Corruption::SectorIdentity { container, what, expected, found }) => {
                assert_eq!((container, what), (DIR, field));
                assert_eq!(expected ^ found, 1);
            }
            other => panic!("{other:?}"),
        }
    }
    let mut image = with_file(b"name", |_| {});
    image[2047] ^= 1;
    let found = verify(&image, DIR, GENERATION, checksum());
    assert_eq!(found, Err(Corruption::SectorChecksum { container: DIR }));
    // As people read it: magics in hexadecimal.
    let message = |at: usize| {
        let image = with_file(b"name", |i| i[at] ^= 1);
        verify(&image, DIR, GENERATION, checksum()).unwrap_err().to_string()
    };
    assert!(message(0).contains(": bad magic (0x") && message(0).contains(" instead of 0x"));
    assert!(message(16).contains(": wrong generation ("), "{}", message(16));
    let found = verify(&image[..39], DIR, GENERATION, checksum());
    assert!(matches!(found, Err(Corruption::SectorIdentity { what: "length", .. })));
}

#[test]
fn each_contradiction_of_an_entry_is_refused() {
    let refusal = |image: &[u8], container| match verify(image, container, GENERATION, checksum()) {
        Err(Corruption::Entry { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let damaged = |change: &dyn Fn(&mut [u8])| refusal(&with_file(b"name", change), DIR);
    let unfilled = "the entries do not fill the used part";
    assert_eq!(damaged(&|i| i[32] += 1), unfilled);
    assert_eq!(damaged(&|i| i[33] = 0xff), unfilled);
    assert_eq!(damaged(&|i| i[34] = 2), unfilled);
    assert_eq!(damaged(&|i| i[40] = 3), unfilled);
    assert_eq!(damaged(&|i| i[40] -= 1), "the lengths of its parts do not add up");
    assert_eq!(damaged(&|i| i[42] = 0), "slots out of order");
    assert_eq!(damaged(&|i| i[48] = 255), "shorter than an inode");
    assert_eq!(damaged(&|i| i[49] = 3), "neither an inode nor a reference");
    assert_eq!(damaged(&|i| i[49] = 2), "not the length of a reference");
    assert_eq!(damaged(&|i| i[50] = 3), "no file type");
    assert_eq!(damaged(&|i| i[50] = 4), "the type is not that of the inode");
    assert_eq!(damaged(&|i| i[51] = 1), "deferred on the device");
    assert_eq!(damaged(&|i| i[51] = 2), "deferred on the device");
    assert_eq!(damaged(&|i| i[52] = 0), "not a name");
    for name in [&b"a/b"[..], b"/", b"a\0", b".", b".."] {
        assert_eq!(refusal(&with_file(name, |_| {}), DIR), "not a name");
    }
    let presence = "a name where there is none, or none where there is one";
    assert_eq!(refusal(&with_file(b"", |_| {}), DIR), presence);
    let table = Container { file: InodeNo::EXTERNAL, ..DIR };
    let mut image = empty(table);
    let inode = Held::Inode { ino: 99, data: Vec::new(), xattrs: Vec::new() };
    let file_type = FileType::Regular;
    let slot = inode.with_body(|body| insert(&mut image, 0, b"name", file_type, body)).unwrap();
    let resealed = |image: &[u8]| {
        let mut image = image.to_vec();
        seal(&mut image, EPOCH, checksum());
        image
    };
    assert_eq!(refusal(&resealed(&image), table), presence);
    remove(&mut image, slot);
    let reference = Held::Reference { ino: 99, sector: 1 };
    reference.with_body(|body| insert(&mut image, 0, b"", file_type, body)).unwrap();
    assert_eq!(refusal(&resealed(&image), table), "a reference from the table");
    let mut image = empty(DIR);
    let reference = Held::Reference { ino: 3, sector: 1 };
    reference.with_body(|body| insert(&mut image, 0, b"name", file_type, body)).unwrap();
    assert_eq!(refusal(&resealed(&image), DIR), "a reference to a system inode");
    let mut image = empty(DIR);
    let reference = Held::Reference { ino: u64::MAX, sector: 1 };
    reference.with_body(|body| insert(&mut image, 0, b"name", file_type, body)).unwrap();
    let unused = "a reference to a number that no inode has";
    assert_eq!(refusal(&resealed(&image), DIR), unused);
    let found = verify(
        &with_file(b"name", |i| i[SECTOR_HEADER_BYTES + 16 + 14] = 128),
        DIR,
        GENERATION,
        checksum(),
    );
    assert_eq!(found, Err(Corruption::Inode { ino: InodeNo(99), what: "unknown flags" }));
}

/// A cookie of a listing is sector and slot. If slots always rose, a reader that continues after the last
/// entry would always find another one, as long as other programs make and remove files.
#[test]
fn slots_are_reused() {
    let mut image = empty(DIR);
    let reference = Held::Reference { ino: 99, sector: 1 };
    let add = |image: &mut [u8], from: u16| {
        reference.with_body(|body| insert_at(image, from, 0, b"n", FileType::Regular, body))
    };
    assert_eq!([1, 1, 1].map(|from| add(&mut image, from)), [Some(1), Some(2), Some(3)]);
    remove(&mut image, 2);
    assert_eq!(add(&mut image, 3), Some(4));
    assert_eq!(add(&mut image, 1), Some(2));
    assert_eq!(add(&mut image, u16::MAX), Some(u16::MAX));
    assert_eq!(add(&mut image, u16::MAX), None);
    assert_eq!(add(&mut image, 1), Some(5));
    let slots: Vec<u16> = Sector::new(&image).entries().map(|entry| entry.slot).collect();
    assert_eq!(slots, [1, 2, 3, 4, 5, u16::MAX]);
    check_sealed(&image);
}

/// A link and an unlink in one epoch: the inode leaves for the external table, and is back before the
/// directory's sector was written.
#[test]
fn an_inode_that_returns_before_it_left_is_no_reference() {
    let mut image = empty(DIR);
    let inode = Held::Inode { ino: 20, data: b"contents".to_vec(), xattrs: Vec::new() };
    let slot =
        inode.with_body(|body| insert(&mut image, 0, b"a", FileType::Regular, body)).unwrap();
    defer_reference(&mut image, slot, SectorIndex(3));
    assert!(inode.with_body(|body| replace(&mut image, slot, body)));
    assert!(!Sector::new(&image).has_deferred());
    assert_eq!(seen(&image), [(slot, b"a".to_vec(), inode.clone())]);
    settle(&mut image);
    assert_eq!(seen(&check_sealed(&image)), [(slot, b"a".to_vec(), inode)]);
}

#[test]
fn an_inode_is_found_by_its_number_unless_it_leaves() {
    let mut image = empty(DIR);
    let inode = |ino| Held::Inode { ino, data: Vec::new(), xattrs: Vec::new() };
    let mut add = |held: Held, name: &[u8]| {
        held.with_body(|body| insert(&mut image, 0, name, FileType::Regular, body)).unwrap()
    };
    let (first, second) = (add(inode(20), b"a"), add(inode(21), b"b"));
    add(Held::Reference { ino: 22, sector: 1 }, b"c");
    let found =
        |image: &[u8], ino| Sector::new(image).find_inode(InodeNo(ino)).map(|entry| entry.slot);
    assert_eq!(found(&image, 20), Some(first));
    assert_eq!(found(&image, 21), Some(second));
    assert_eq!(found(&image, 22), None);
    defer_removal(&mut image, first);
    defer_reference(&mut image, second, SectorIndex(3));
    assert_eq!((found(&image, 20), found(&image, 21)), (None, None));
}
