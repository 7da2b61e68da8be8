//! Documents that keep the rule and that break it.

use std::path::PathBuf;

use super::*;

fn findings(document: &str) -> Vec<String> {
    let mut tree = Tree::default();
    let files = [
        (DOCUMENT, document),
        ("crates/c/tests/t.rs", "#[test]\nfn it_holds() {}\n"),
        ("tests/cases.py", "@case(\"a-case\")\ndef a():\n    def test_it(self):\n"),
    ];
    for (path, text) in files {
        tree.files.insert(PathBuf::from(path), text.to_owned());
    }
    check(&tree).iter().map(ToString::to_string).collect()
}

#[test]
fn tests_that_exist_are_found() {
    assert!(
        findings("# T\n\n## One\n\nShown by `it_holds`,\n`a-case` and `test_it`.\n").is_empty()
    );
    let table = "## One\n\n| call | shown by |\n| --- | --- |\n| `write` | `it_holds` |\n";
    assert!(findings(table).is_empty());
}

#[test]
fn tests_that_do_not_exist_are_named() {
    let found = findings("## One\n\nShown by `it_holds` and\n`another`.\n\n`word` is no test.\n");
    assert_eq!(found, ["docs/SEMANTICS.md:4: there is no test another"]);
    let table = "## One\n\n| call | shown by |\n| --- | --- |\n| `write` | `another` |\n";
    assert_eq!(findings(table), ["docs/SEMANTICS.md:5: there is no test another"]);
}

#[test]
fn a_chapter_without_tests_is_named() {
    let found = findings("## One\n\nWords.\n\n## Two\n\nShown by `a-case`.\n");
    assert_eq!(found, ["docs/SEMANTICS.md:1: the chapter \"One\" names no test that shows it"]);
}
