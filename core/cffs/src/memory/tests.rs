use super::*;

const MIB: u64 = 1 << 20;

fn weight(inode: u64, attributes: u64, extents: u64, is_changed: bool) -> Weight {
    Weight { inode, attributes, extents, is_changed }
}

#[test]
fn dropped_objects_are_off_the_account() {
    let memory = Arc::new(Memory::new(64 * MIB, 16 * MIB));
    let mut charge = Charge::default();
    assert!(!charge.set(weight(1, 2, 3, true)), "nothing is charged before there is an account");
    charge.open(&memory);
    assert!(charge.set(weight(500, 4096, 0, true)));
    assert!(!charge.set(weight(500, 4096, 0, false)), "it only became clean");
    assert!(charge.set(weight(500, 4096, 640, true)));
    let held = Held::new(&memory, Kind::InFlight, 8192);
    assert_eq!(memory.charged(Kind::Attributes), 4096);
    assert_eq!(memory.inode_bytes(), 500 + 4096 + 640);
    assert_eq!(memory.unwritten_bytes(), 4096 + 640 - CHANGED_INODE_BYTES);
    assert_eq!(memory.charged(Kind::InFlight), 8192);
    drop((charge, held));
    for kind in Kind::ALL {
        assert_eq!(memory.charged(kind), 0, "{kind:?}");
    }
    assert_eq!(memory.unwritten_bytes(), 0);
}

#[test]
fn pages_or_inodes_and_what_hangs_on_them_fill_what_changes_may_take() {
    let memory = Arc::new(Memory::new(64 * MIB, 16 * MIB));
    memory.add(Kind::Pages, 8 * MIB);
    (0..4096).for_each(|_| memory.queued());
    assert_eq!(memory.unwritten_bytes(), 8 * MIB, "the larger of the two");
    assert!(!memory.is_filling());
    let mut charge = Charge::default();
    charge.open(&memory);
    charge.set(weight(0, MIB, 0, false));
    assert!(!memory.is_filling(), "what the device has is not in the way");
    charge.set(weight(0, 8 * MIB + CHANGED_INODE_BYTES + 1, 0, true));
    assert!(memory.is_full());
    memory.sub(Kind::Pages, 8 * MIB);
    memory.taken(4096);
    assert!(memory.is_filling() && !memory.is_full());
}

#[test]
fn one_file_with_very_many_extents_does_not_fill_it_alone() {
    let memory = Arc::new(Memory::new(64 * MIB, 16 * MIB));
    let charges: Vec<Charge> = (0..17)
        .map(|number| {
            assert_eq!(memory.is_full(), number > 16);
            let mut charge = Charge::default();
            charge.open(&memory);
            charge.set(weight(0, 0, 100 * MIB, true));
            charge
        })
        .collect();
    assert!(memory.is_full());
    assert_eq!(memory.charged(Kind::Extents), 17 * 100 * MIB, "but all of them are counted");
    drop(charges);
}
