//! Lines with and without the phrases.

use std::path::PathBuf;

use super::*;

fn tree(path: &str, lines: &[&str]) -> Tree {
    let mut tree = Tree::default();
    tree.files.insert(PathBuf::from(path), lines.join("\n"));
    tree
}

#[test]
fn phrases_are_found_as_whole_words_only() {
    type Occurs = fn(&str) -> bool;
    let cases: [(Occurs, &str, &str); 9] = [
        (|line| has_words(line, "anew"), "// it is written anew.", "let canewas = manewver;"),
        (has_who, "// the thread who waits for it", "// the users who own it"),
        (has_bare_beside, "// costs a file beside it", "// lies beside the superblock"),
        (leads_there, "// no name leads there", "// it leads to there"),
        (begins_with_what, "    /// what is read.", "/// whatever was read."),
        (has_nobody, "// nobody waits for it", "// the user `nobody` reads it"),
        (has_what_participle, "// skips what is written", "// what is a garden"),
        (has_there_that, "// there is a file that grows", "// that there is a file"),
        (|line| has_words(line, "so many"), "/// of so many bytes.", "/// also many bytes."),
    ];
    for (occurs, with, without) in cases {
        assert!(occurs(with), "{with}");
        assert!(!occurs(without), "{without}");
    }
}

#[test]
fn only_a_count_above_its_limit_is_found() {
    let phrase = |limit| Phrase { name: "anew", limit, occurs: |line| has_words(line, "anew") };
    let lines = ["fn a() {}", "// Anew", "// read anew"];
    let found = check_phrase(&tree("a.rs", &lines), &phrase(1)).expect("two lines have it");
    assert!(found.to_string().starts_with("a.rs:3: anew: 2 lines have it, 1 may"), "{found}");
    assert_eq!(check_phrase(&tree("a.rs", &lines), &phrase(2)), None);
    assert_eq!(check_phrase(&tree("a.rs", &lines), &phrase(3)), None);
    assert_eq!(check_phrase(&tree("CONTRIBUTING.md", &lines), &phrase(0)), None);
}
