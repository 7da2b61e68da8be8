//! Small trees that are untidy, and their findings.

use super::*;

fn findings(path: &str, text: &str) -> Vec<String> {
    let mut tree = Tree::default();
    tree.files.insert(path.into(), text.to_owned());
    check(&tree).iter().map(ToString::to_string).collect()
}

#[test]
fn long_lines_are_found_by_characters() {
    let just_right = "é ".repeat(55);
    let too_long = format!("short\n{just_right}x\n");
    assert!(findings("a.rs", &just_right).is_empty());
    let expected = ["a.rs:2: 111 characters are too many, 110 the limit"];
    assert_eq!(findings("a.rs", &too_long), expected);
    assert_eq!(findings("a.md", &too_long).len(), 1);
    assert_eq!(findings("Makefile", &too_long).len(), 1);
}

#[test]
fn lines_that_cannot_be_shorter_are_accepted() {
    let long = "word ".repeat(30);
    assert!(findings("a.md", &format!("| {long} |")).is_empty());
    assert!(findings("a.rs", &format!("    //! | {long} |")).is_empty());
    assert!(findings("a.sh", &format!("# | {long} |")).is_empty());
    assert!(findings("a.rs", &format!("    \"{long}\",")).is_empty());
    assert_eq!(findings("a.rs", &format!("    {long} f(\"{}\");", "x".repeat(30))).len(), 1);
    assert_eq!(findings("a.rs", &format!("    \"{long}\", \"more\",")).len(), 1);
    assert!(findings("docs/FSCK.md", &long).is_empty());
    let address = format!("see https://example.org/{}", "x".repeat(100));
    assert!(findings("a.md", &address).is_empty());
}

#[test]
fn unfinished_code_is_found() {
    for word in UNFINISHED {
        let found = findings("core/cffs/src/vfs/mod.rs", &format!("fn f() {{\n    {word}\n"));
        assert_eq!(found, [format!("core/cffs/src/vfs/mod.rs:2: unfinished: {word}")]);
        assert!(findings("CHANGELOG.md", word).is_empty());
    }
}

#[test]
fn paths_of_one_machine_are_found_in_every_kind_of_file() {
    for path in ["a.rs", "a.md", "Makefile", "a.toml", "scripts/setup.sh"] {
        for text in ["cd PRIVATEmain", "\"PRIVATEmain\"", "PRIVATE", "root=PRIVATEx"] {
            let found = findings(path, &text.replace("PRIVATE", PRIVATE_PATH));
            assert_eq!(found.len(), 1, "{path}: {text}");
        }
        for text in ["target.PRIVATE", "$dirPRIVATE", "{tmp}PRIVATEx", "~PRIVATE"] {
            let found = findings(path, &text.replace("PRIVATE", PRIVATE_PATH));
            assert!(found.is_empty(), "{path}: {text}");
        }
    }
}

#[test]
fn tests_among_code_are_found() {
    let found = findings("a.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n}\n");
    assert_eq!(found, ["a.rs:3: tests stand in a file of their own, tests.rs"]);
    assert!(findings("a.rs", "fn f() {}\n#[cfg(test)]\nmod tests;\n").is_empty());
}
