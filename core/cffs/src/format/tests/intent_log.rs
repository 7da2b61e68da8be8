//! The intent log.

use super::*;
use crate::format::intent_log::{self, HEADER_BYTES, Marks, Position, Record};
use crate::units::{CgIndex, FragNo, FragRun};

const AT: Position = Position { generation: 7, sequence: 3, previous: 5 };

fn records() -> impl Strategy<Value = Record> {
    let ino = || any::<u64>().prop_map(InodeNo);
    prop_oneof![
        ino().prop_map(Record::Directory),
        any::<u32>().prop_map(|position| Record::Table { position }),
        (ino(), any::<u32>()).prop_map(|(ino, names)| Record::External { ino, names }),
        (ino(), any::<u32>(), ino()).prop_map(|(dir, position, ino)| Record::Reference {
            dir,
            position,
            ino
        }),
        (any::<u64>(), any::<u16>())
            .prop_map(|(position, used)| Record::Locator { position, used }),
        (any::<u32>(), any::<u32>()).prop_map(|(cg, free)| Record::Group { cg: CgIndex(cg), free }),
        (any::<u64>(), any::<u32>())
            .prop_map(|(start, len)| Record::Freed(FragRun::new(FragNo(start), len))),
        (any::<u64>(), any::<u32>(), any::<u8>()).prop_map(|(start, len, references)| {
            Record::Cluster { run: FragRun::new(FragNo(start), len), references }
        }),
        (any::<u64>(), ino(), any::<u8>()).prop_map(|(start, ino, extents)| Record::Referrer {
            start: FragNo(start),
            ino,
            extents
        }),
        (ino(), any::<[u32; 3]>()).prop_map(|(dir, [entries, subdirectories, buckets])| {
            Record::LargeDirectory { dir, entries, subdirectories, buckets }
        }),
        (ino(), any::<u32>(), any::<[u16; 2]>()).prop_map(
            |(dir, position, [names, subdirectories])| Record::DirectoryBlock {
                dir,
                position,
                names,
                subdirectories
            }
        ),
        (ino(), any::<u32>()).prop_map(|(dir, bucket)| Record::Bucket { dir, bucket }),
        ino().prop_map(Record::Nameless),
        Just(Record::Settling),
        Just(Record::End),
    ]
}

proptest! {
    #[test]
    fn records_are_returned_as_far_as_they_fit(all in prop::collection::vec(records(), 0..80)) {
        let mut sector = vec![0xee; 512];
        intent_log::init(&mut sector, AT);
        let fit: Vec<Record> =
            all.iter().take_while(|record| intent_log::append(&mut sector, record)).copied().collect();
        let bytes: usize = fit.iter().map(Record::encoded_bytes).sum();
        prop_assert!(bytes <= 512 - HEADER_BYTES);
        if let Some(next) = all.get(fit.len()) {
            prop_assert!(bytes + next.encoded_bytes() > 512 - HEADER_BYTES);
        }
        let previous = intent_log::seal(&mut sector, checksum());
        let mut position = AT;
        let marks = intent_log::decode(&sector, &mut position, checksum());
        prop_assert_eq!(marks, Some(Marks { records: fit, incomplete: false }));
        prop_assert_eq!(position, Position { sequence: 4, previous, ..AT });
    }
}

#[test]
fn the_log_ends_where_a_sector_does_not_continue_it() {
    let reads = |sector: &[u8], mut position: Position| {
        intent_log::decode(sector, &mut position, checksum()).is_some()
    };
    let mut sector = vec![0; 512];
    assert!(!reads(&sector, Position::default()));
    intent_log::init(&mut sector, AT);
    intent_log::seal(&mut sector, checksum());
    assert!(reads(&sector, AT));
    assert!(!reads(&sector, Position { generation: 8, ..AT }));
    assert!(!reads(&sector, Position { sequence: 4, ..AT }));
    assert!(!reads(&sector, Position { previous: 6, ..AT }));
    assert!(!reads(&sector[..20], AT));
    sector[400] ^= 1;
    assert!(!reads(&sector, AT));
}

#[test]
fn an_unknown_record_makes_the_log_incomplete() {
    let incomplete = |change: &dyn Fn(&mut [u8])| {
        let mut sector = vec![0; 512];
        intent_log::init(&mut sector, AT);
        assert!(intent_log::append(&mut sector, &Record::Directory(InodeNo(1))));
        change(&mut sector);
        intent_log::seal(&mut sector, checksum());
        let marks = intent_log::decode(&sector, &mut AT.clone(), checksum());
        marks.expect("it continues the log").incomplete
    };
    assert!(!incomplete(&|_| {}));
    assert!(incomplete(&intent_log::set_incomplete));
    assert!(incomplete(&|sector| sector[HEADER_BYTES] = 99));
    assert!(incomplete(&|sector| sector[20] = 4));
    assert!(incomplete(&|sector| sector[20..22].copy_from_slice(&[0xff; 2])));
}
