//! docs/FSCK.md and the table of problems say the same.

use crate::fsck::problems::{Code, PROBLEMS};

#[test]
fn the_document_explains_every_problem_in_the_words_of_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/FSCK.md");
    let document = std::fs::read_to_string(path).expect("docs/FSCK.md");
    for problem in PROBLEMS {
        let section = format!(
            "### {}: {}\n\n*{:?}.* {}\n\n*Repair:* {}\n",
            problem.id, problem.title, problem.severity, problem.meaning, problem.repair
        );
        assert!(document.contains(&section), "docs/FSCK.md lacks:\n{section}");
    }
    let sections = document.lines().filter(|line| line.starts_with("### CF")).count();
    assert_eq!(sections, PROBLEMS.len(), "the document explains problems that do not exist");
}

#[test]
fn codes_are_in_order_and_have_their_own_rows() {
    for (index, problem) in PROBLEMS.iter().enumerate() {
        assert_eq!(problem.code as usize, index);
    }
    assert!(PROBLEMS.windows(2).all(|pair| pair[0].id < pair[1].id));
}

/// The superblock records damage by the number of its code, which a call that finds it also has.
#[test]
fn every_corruption_has_a_code_of_the_table() {
    use crate::error::Corruption;
    use crate::units::{BlockNo, CgIndex, Container, FragNo, InodeNo, SectorIndex};

    let (ino, what) = (InodeNo(77), "");
    let container = |file| Container { file, sector: SectorIndex(0) };
    let (cg, sector, start, block) = (CgIndex(0), SectorIndex(0), FragNo(0), BlockNo(0));
    for (corruption, code) in [
        (Corruption::SuperblockMagic { offset: 0 }, Code::SuperblockLost),
        (Corruption::SuperblockChecksum { offset: 0 }, Code::SuperblockLost),
        (Corruption::SuperblockField { field: "", value: 0 }, Code::SuperblockLost),
        (Corruption::JournalHeader { block }, Code::JournalHeader),
        (Corruption::JournalRecord { block }, Code::JournalLost),
        (Corruption::JournalForeign { found: 1, noted: 2 }, Code::JournalLost),
        (Corruption::JournalOlder { sequence: 1, noted: 2 }, Code::JournalLost),
        (Corruption::JournalNewer { sequence: 3, noted: 1 }, Code::JournalLost),
        (Corruption::SectorChecksum { container: container(ino) }, Code::SectorLost),
        (Corruption::SectorChecksum { container: container(InodeNo::SYSTEM) }, Code::SystemArea),
        (
            Corruption::SectorChecksum { container: container(InodeNo::EXTERNAL) },
            Code::TableSectorLost,
        ),
        (Corruption::Entry { container: container(ino), offset: 0, what }, Code::BadEntry),
        (Corruption::Inode { ino, what }, Code::BadEntry),
        (Corruption::Reference { dir: InodeNo(78), ino, sector }, Code::Dangling),
        (Corruption::EntryType { dir: InodeNo(78), ino }, Code::EntryType),
        (Corruption::Extent { ino, start, what }, Code::ExtentRange),
        (Corruption::ExtentBlock { ino, block, what }, Code::ExtentBlock),
        (Corruption::Contents { ino }, Code::Contents),
        (Corruption::XattrBlock { ino, start, what }, Code::AttributeBlock),
        (Corruption::Loop { ino }, Code::DirectoryLoop),
        (Corruption::LocatorBlock { index: 0, what }, Code::LocatorBlock),
        (Corruption::LocatorEntry { ino, container: container(ino) }, Code::LocatorEntry),
        (Corruption::IndexBlock { dir: ino, index: 0, what }, Code::Index),
        (Corruption::CgHeader { cg, what }, Code::GroupHeader),
        (Corruption::CgBitmap { cg }, Code::Bitmap),
    ] {
        assert_eq!(corruption.code(), code.number(), "{corruption}");
    }
}
