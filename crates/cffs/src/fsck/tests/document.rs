//! docs/FSCK.md and the table of problems tell the same.

use crate::fsck::problems::PROBLEMS;

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
fn codes_are_in_order_and_stand_in_their_own_row() {
    for (index, problem) in PROBLEMS.iter().enumerate() {
        assert_eq!(problem.code as usize, index);
    }
    assert!(PROBLEMS.windows(2).all(|pair| pair[0].id < pair[1].id));
}
