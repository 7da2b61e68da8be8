//! Texts with long functions and files.

use super::*;

fn measured(name: &str, lines: usize) -> Vec<Measured<'static>> {
    vec![Measured { path: Path::new("a.rs"), name: name.to_owned(), line: 7, lines }]
}

fn said(found: &[Finding]) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn functions_are_measured_from_their_head_to_their_end() {
    let text = "\
/// Words.
pub fn one() {}
impl T {
    fn two<const N: usize>(
        a: [u8; N],
    ) -> u8 {
        let closure = || {
            fn inner() {
            }
        };
    }
    fn declared(&self);
}
macro_rules! m { () => { fn in_macro() {
} } }
const F: fn(u8) = one;
";
    let expected = [("one", 2, 1), ("inner", 8, 2), ("two", 4, 8), ("in_macro", 14, 2)];
    let mut found = functions(text);
    found.sort();
    let mut expected = expected.map(|(name, line, lines)| (name.to_owned(), line, lines));
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn functions_and_files_that_are_too_long_are_found() {
    assert!(compare(measured("f", 80).into_iter(), 80, &[]).is_empty());
    let found = compare(measured("f", 81).into_iter(), 80, &[]);
    assert_eq!(said(&found), ["a.rs:7: fn f: 81 lines are too many, 80 the limit"]);
    let found = compare(measured("", 81).into_iter(), 80, &[]);
    assert_eq!(said(&found), ["a.rs:7: 81 lines are too many, 80 the limit"]);
}

#[test]
fn a_known_exception_may_shrink_and_is_removed_in_the_end() {
    let known = [("a.rs", "f", 100)];
    assert!(compare(measured("f", 100).into_iter(), 80, &known).is_empty());
    assert!(compare(measured("f", 90).into_iter(), 80, &known).is_empty());
    let found = compare(measured("f", 101).into_iter(), 80, &known);
    assert_eq!(said(&found), ["a.rs:7: fn f: 101 lines are too many, 100 the limit"]);
    for short in [measured("f", 80), measured("g", 10)] {
        let found = compare(short.into_iter(), 80, &known);
        assert!(found[0].message.contains("take it from the list"), "{}", found[0]);
    }
}

#[test]
fn tests_and_documents_may_be_long() {
    let mut tree = Tree::default();
    let long = "x\n".repeat(FILE_LINES_MAX + 1);
    for path in ["a/tests.rs", "a/tests/b.rs", "docs/FORMAT.md", "Cargo.toml"] {
        tree.files.insert(path.into(), long.clone());
    }
    assert_eq!(said(&check_against(&tree, &[], &[])), Vec::<String>::new());
    tree.files.insert("scripts/run.sh".into(), long);
    assert_eq!(
        said(&check_against(&tree, &[], &[])),
        ["scripts/run.sh:601: 601 lines are too many, 600 the limit"]
    );
}
