use super::*;
use crate::error::{Corruption, Error};
use crate::format::Layout;
use crate::format::superblock::{HOLDER_NAME_BYTES, JournalFlags, SUPERBLOCK_BYTES};
use crate::units::CgIndex;

fn resealed(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = superblock().encode().to_vec();
    change(&mut bytes);
    let uuid: [u8; 16] = std::array::from_fn(|index| bytes[16 + index]);
    Checksum::new(&uuid).seal(&mut bytes, 8);
    bytes
}

fn corruption(bytes: &[u8]) -> Corruption {
    match Superblock::decode(bytes, 4096) {
        Err(Error::Corruption(corruption)) => corruption,
        other => panic!("{other:?}"),
    }
}

#[test]
fn encode_and_decode_are_inverse() {
    let superblock = superblock();
    assert_eq!(Superblock::decode(&superblock.encode(), 0).unwrap(), superblock);
    let label = Superblock { label: vec![b'x'; 64], ..superblock };
    assert_eq!(Superblock::decode(&label.encode(), 0).unwrap(), label);
    let bare = Superblock { holder: None, damage: None, ..label };
    assert_eq!(Superblock::decode(&bare.encode(), 0).unwrap(), bare);
}

/// A name of a host may be longer than its field; a label never is.
#[test]
fn a_long_name_of_a_host_is_cut_off() {
    let holder = Holder { name: vec![b'h'; 100], ..Holder::default() };
    let superblock = Superblock { holder: Some(holder), ..superblock() };
    let decoded = Superblock::decode(&superblock.encode(), 0).unwrap();
    assert_eq!(decoded.holder.unwrap().name, [b'h'; HOLDER_NAME_BYTES]);
    assert_eq!(decoded.damage, superblock.damage, "the field after it is as it was");
}

/// A volume is refused unless its journal follows the head of a group and leaves room there.
#[test]
fn a_journal_at_an_impossible_place_is_refused() {
    let layout = Layout::new(&superblock());
    let start = layout.journal_start(CgIndex(3)).0;
    let journal = JournalArea { start, blocks: 2048, ..JournalArea::default() };
    let incompat = Incompat::JOURNAL | Incompat::CLUSTERS;
    let with = |journal| Superblock { incompat, journal, ..superblock() };
    let decoded = |journal| Superblock::decode(&with(journal).encode(), 4096);
    assert_eq!(decoded(journal).unwrap().journal, journal);
    for (journal, field) in [
        (
            JournalArea { flags: JournalFlags::from_bits_retain(1 << 31), ..journal },
            "journal_flags",
        ),
        (JournalArea { flags: JournalFlags::EXTERNAL, ..journal }, "journal_start"),
        (
            JournalArea { flags: JournalFlags::EXTERNAL, start: 0, blocks: 15, ..journal },
            "journal_blocks",
        ),
        (
            JournalArea { flags: JournalFlags::EXTERNAL, start: 0, blocks: 1 << 21, ..journal },
            "journal_blocks",
        ),
        (JournalArea { blocks: 15, ..journal }, "journal_blocks"),
        (JournalArea { blocks: 32769, ..journal }, "journal_blocks"),
        (JournalArea { blocks: 32768, ..journal }, "journal_start"),
        (JournalArea { start: start + 1, ..journal }, "journal_start"),
        (JournalArea { start: 1_000_000, ..journal }, "journal_start"),
        (JournalArea { start: u64::MAX, ..journal }, "journal_start"),
        (JournalArea { sequence: u64::MAX, ..journal }, "journal_sequence"),
    ] {
        assert!(
            matches!(corruption(&with(journal).encode()),
                Corruption::SuperblockField { field: found, .. } if found == field),
            "{journal:?}"
        );
    }
}

/// Checksums of metadata outlive a change of the UUID; that of the superblock itself has the UUID as its
/// seed.
#[test]
fn the_uuid_can_change() {
    let before = superblock();
    let after = Superblock { uuid: *b"another identity", ..before.clone() };
    assert_eq!(after.checksum(), before.checksum());
    let bytes = after.encode();
    assert!(Checksum::new(&after.uuid).verify(&bytes, 8));
    assert_eq!(Superblock::decode(&bytes, 0).unwrap(), after);
}

#[test]
fn a_block_that_is_not_a_superblock_is_refused() {
    let bytes = superblock().encode();
    let offset = 4096;
    assert_eq!(corruption(&bytes[..511]), Corruption::SuperblockMagic { offset });
    assert_eq!(corruption(&[0; 512]), Corruption::SuperblockMagic { offset });
    let mut text_mode = bytes;
    text_mode[4] = b'\n';
    assert_eq!(corruption(&text_mode), Corruption::SuperblockMagic { offset });
    for at in 8..SUPERBLOCK_BYTES {
        let mut damaged = bytes;
        damaged[at] ^= 0x10;
        assert_eq!(corruption(&damaged), Corruption::SuperblockChecksum { offset }, "byte {at}");
    }
}

#[test]
fn another_version_and_unknown_features_are_unsupported() {
    let unsupported = |bytes: &[u8]| match Superblock::decode(bytes, 0) {
        Err(Error::Unsupported(why)) => why,
        other => panic!("{other:?}"),
    };
    let newer = resealed(|bytes| bytes[12] = 3);
    assert!(unsupported(&newer).contains("format version 3"));
    let incompat = resealed(|bytes| bytes[104 + 3] = 0x80);
    assert!(unsupported(&incompat).contains("0x80000000"));
    let ro_compat = resealed(|bytes| bytes[100 + 3] = 0x80);
    assert!(!Superblock::decode(&ro_compat, 0).unwrap().writable());
    assert!(superblock().writable());
    let compat = resealed(|bytes| bytes[96 + 3] = 0x80);
    assert!(Superblock::decode(&compat, 0).unwrap().writable());
}

#[test]
fn each_field_is_held_to_its_range() {
    let refused = |field: &str, change: fn(&mut Superblock)| {
        let mut changed = superblock();
        change(&mut changed);
        match corruption(&changed.encode()) {
            Corruption::SuperblockField { field: found, .. } => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
    };
    refused("block_bytes", |s| s.block_bytes = 2048);
    refused("block_bytes", |s| s.block_bytes = 131_072);
    refused("block_bytes", |s| s.block_bytes = 12_288);
    refused("fragment_bytes", |s| s.fragment_bytes = 256);
    refused("fragment_bytes", |s| s.fragment_bytes = 16_384);
    refused("block_bytes", |s| (s.block_bytes, s.fragment_bytes) = (65536, 512));
    refused("sector_bytes", |s| s.sector_bytes = 256);
    refused("sector_bytes", |s| s.sector_bytes = 8192);
    refused("segment_bytes", |s| s.segment_bytes = 4096);
    refused("segment_bytes", |s| s.segment_bytes = 32 << 20);
    refused("segment_bytes", |s| (s.cg_blocks, s.segment_bytes, s.blocks) = (64, 1 << 20, 64));
    refused("cg_blocks", |s| s.cg_blocks = 32);
    refused("cg_blocks", |s| s.cg_blocks = 2 << 20);
    refused("cg_blocks", |s| s.cg_blocks = 1000);
    refused("inline_bytes_max", |s| s.inline_bytes_max = 2048);
    refused("blocks", |s| s.blocks = 0);
    refused("blocks", |s| s.blocks = 63);
    refused("blocks", |s| s.blocks = 1 << 40);
    refused("blocks", |s| (s.cg_blocks, s.blocks) = (64, 64 << 31));
    refused("blocks", |s| (s.blocks, s.cg_rotor) = (32768 * 3 + 8, 0));
    refused("cgs_made", |s| s.cgs_made = 32);
    refused("cg_rotor", |s| s.cg_rotor = 31);
    refused("intent_log_blocks", |s| s.intent_log_blocks = 0);
    refused("intent_log_blocks", |s| s.intent_log_blocks = 33);
    let largest = Superblock { intent_log_blocks: 32, ..superblock() };
    assert_eq!(Superblock::decode(&largest.encode(), 0).unwrap(), largest);
    refused("reserve_fragments", |s| s.reserve.fragments = 8_000_000);
    for (at, field, wrong) in [
        (126, "policy", [0, 9, 255]),
        (127, "state", [0, 4, 255]),
        (320, "errors_policy", [3, 4, 255]),
    ] {
        for value in wrong {
            let expected = Corruption::SuperblockField { field, value: u64::from(value) };
            assert_eq!(corruption(&resealed(|bytes| bytes[at] = value)), expected);
        }
    }
}

proptest! {
    /// Decoding never fails to return, for any bytes, and accepted superblocks have a layout.
    #[test]
    fn mutated_superblocks_are_refused_or_usable(mutations in mutations()) {
        let bytes = resealed(|bytes| mutate(bytes, &mutations, 8..416));
        if let Ok(superblock) = Superblock::decode(&bytes, 0) {
            let layout = super::super::Layout::new(&superblock);
            prop_assert!(layout.allocatable_fragments() < layout.fragments());
            prop_assert!(!layout.superblock_copies().is_empty());
        }
    }
}
