//! Citations of what exists, and of what does not.

use super::*;

fn findings(path: &str, text: &str) -> Vec<String> {
    let mut tree = Tree::default();
    let files = [
        ("docs/DESIGN.md", "# Design\n\n## Truth and derived state\n\n## Epochs: how, when?\n"),
        ("docs/FORMAT.md", "# Format\n\n## 13. The end\n"),
        ("docs/decisions/008-a.md", "# A decision\n"),
        (path, text),
    ];
    for (path, text) in files {
        tree.files.insert(PathBuf::from(path), text.to_owned());
    }
    tree.others.insert(PathBuf::from("docs/picture.svg"));
    check(&tree).iter().map(ToString::to_string).collect()
}

#[test]
fn chapters_are_found_by_title_over_lines_and_by_number() {
    let text = "//! As it is (DESIGN: truth and derived\n//! state; more).\n// FORMAT chapter 13, \
                (FORMAT: the end).\n";
    assert_eq!(findings("a.rs", text), Vec::<String>::new());
}

#[test]
fn chapters_that_do_not_exist_are_named() {
    let found = findings("a.rs", "\n// So (DESIGN: placement).\n");
    assert_eq!(found, ["a.rs:2: docs/DESIGN.md has no chapter \"placement\""]);
    let found = findings("a.py", "# FORMAT chapter 14\n");
    assert_eq!(found, ["a.py:1: docs/FORMAT.md has no chapter 14"]);
    let found = findings("a.rs", "// (SEMANTICS: fsync)\n");
    assert_eq!(found, ["a.rs:1: docs/SEMANTICS.md has no chapter \"fsync\""]);
}

#[test]
fn decisions_are_looked_up() {
    assert!(findings("a.rs", "// As decision 008 has it; a decision 2 years ago.\n").is_empty());
    assert_eq!(findings("a.rs", "// decision 009.\n"), ["a.rs:1: there is no decision 009"]);
}

#[test]
fn links_lead_somewhere() {
    let good = "[a](docs/DESIGN.md), [b](docs/DESIGN.md#epochs-how-when), [c](https://x.y/z)\n\
                ![d](docs/picture.svg) [e](#top) `[f](g)` [h](docs)\n# Top\n```\n[x](y)\n```\n";
    assert_eq!(findings("README.md", good), Vec::<String>::new());
    let found = findings("docs/A.md", "[a](../README.md) [b](DESIGN.md#no) [c](#no)\n");
    assert_eq!(
        found,
        [
            "docs/A.md:1: the link to ../README.md leads nowhere",
            "docs/A.md:1: the link to DESIGN.md#no leads nowhere",
            "docs/A.md:1: the link to #no leads nowhere",
        ]
    );
}
