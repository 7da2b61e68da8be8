//! Rows of the map that are right, and one for each way to be wrong.

use super::*;

fn findings(row: &str) -> Vec<String> {
    let mut tree = Tree::default();
    let head = "| section | item | state | code | test or command | measurement or decision |\n";
    let files = [
        ("Makefile", "bench: ## Measure\n".to_owned()),
        ("core/cffs/src/a.rs", "#[test]\nfn it_works() {}\n".to_owned()),
        (DOCUMENT, format!("{head}| --- | --- | --- | --- | --- | --- |\n{row}\n")),
    ];
    for (path, text) in files {
        tree.files.insert(PathBuf::from(path), text);
    }
    let found = check(&tree).into_iter().map(|finding| {
        assert_eq!((finding.path, finding.line), (PathBuf::from(DOCUMENT), 3));
        finding.message
    });
    found.collect()
}

#[test]
fn rows_whose_citations_exist_are_accepted() {
    for state in ["works", "missing", "partly (no cache)", "different ([001](decisions/001-a.md))"]
    {
        let row = format!(
            "| 2.1 | inodes | {state} | `a.rs`, `core/cffs/src/a.rs` | `it_works`, `make bench QUICK=1`, \
             `cffs fsck tree.cffs`, `core/cffs/src` | `anything` |"
        );
        assert_eq!(findings(&row), Vec::<String>::new());
    }
    assert_eq!(findings("| 2.1 | inodes | missing | | | |"), Vec::<String>::new());
}

#[test]
fn each_wrong_citation_and_state_is_named() {
    for (row, expected) in [
        ("| 2.1 | x | works | `b.rs` | | |", "there is no file b.rs"),
        ("| 2.1 | x | works | | `it_fails` | |", "there is no test it_fails"),
        ("| 2.1 | x | works | | `tests/none.rs` | |", "there is no file tests/none.rs"),
        ("| 2.1 | x | works | | `make coffee` | |", "the Makefile has no target coffee"),
        ("| 2.1 | x | works | | |", "a row has 5 cells, not 6"),
    ] {
        assert_eq!(findings(row), [expected]);
    }
    for state in ["", "done", "partly", "different", "different (001)"] {
        let found = findings(&format!("| 2.1 | x | {state} | | | |"));
        assert!(found[0].starts_with(&format!("the state \"{state}\"")), "{found:?}");
    }
}

#[test]
fn a_missing_document_is_named() {
    assert_eq!(check(&Tree::default()).len(), 1);
}
