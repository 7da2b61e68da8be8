//! Small crates with and without cycles.

use super::*;

fn tree(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::default();
    for (path, text) in files {
        tree.files.insert(Path::new("crates/c/src").join(path), (*text).to_owned());
    }
    tree
}

fn circles(files: &[(&str, &str)]) -> Vec<String> {
    check_against(&tree(files), &[]).iter().map(ToString::to_string).collect()
}

#[test]
fn files_that_use_each_other_are_found() {
    let found = circles(&[("a.rs", "use crate::b::B;"), ("b.rs", "fn f() { crate::a::g() }")]);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("crates/c/src/a.rs:1: these files use each other"), "{found:?}");
    assert!(found[0].contains("a.rs, crates/c/src/b.rs;"), "{found:?}");
}

#[test]
fn an_indirect_circle_is_found() {
    let files = [
        ("m/mod.rs", "mod a; mod b; mod c;"),
        ("m/a.rs", "use super::b::B;"),
        ("m/b.rs", "use super::c::C;"),
        ("m/c.rs", "use super::a::A;"),
        ("m/d.rs", "use super::a::A;"),
    ];
    let found = circles(&files);
    assert_eq!(found.len(), 1);
    assert!(!found[0].contains("d.rs"), "it only leads into the circle: {found:?}");
}

#[test]
fn a_part_may_use_what_contains_it() {
    let files = [
        ("lib.rs", "mod m; pub use m::a::A;"),
        ("m/mod.rs", "mod a; pub struct M; fn f() { crate::m::a::g() }"),
        ("m/a.rs", "use super::M; use crate::Top; mod inner;"),
        ("m/a/inner.rs", "use super::super::M; use crate::m::a::G;"),
    ];
    assert!(circles(&files).is_empty());
}

#[test]
fn rules_cannot_be_bypassed_through_containing_modules() {
    let files = [
        ("a.rs", "mod part; use crate::b::B;"),
        ("a/part.rs", "use super::A;"),
        ("b.rs", "use crate::a::part::P;"),
    ];
    assert!(circles(&files).is_empty(), "part uses nothing but what contains it");
    let files = [
        ("a.rs", "mod part;"),
        ("a/part.rs", "use crate::b::B;"),
        ("b.rs", "use crate::a::part::P;"),
    ];
    assert_eq!(circles(&files).len(), 1);
}

#[test]
fn tests_do_not_count() {
    let files = [("a.rs", "use crate::b::B;"), ("b/tests.rs", "use crate::a::A;"), ("b.rs", "")];
    assert!(circles(&files).is_empty());
}

#[test]
fn a_known_circle_may_shrink_but_not_grow_and_goes_from_the_list_in_the_end() {
    let three = [
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", "use crate::b::B; use crate::a::A;"),
    ];
    let two = [("a.rs", ""), ("b.rs", "use crate::c::C;"), ("c.rs", "use crate::b::B;")];
    let none = [("a.rs", ""), ("b.rs", "use crate::c::C;"), ("c.rs", "")];
    let entry = ["crates/c/src/a.rs", "crates/c/src/b.rs", "crates/c/src/c.rs"];
    assert!(check_against(&tree(&three), &[&entry]).is_empty());
    assert!(check_against(&tree(&two), &[&entry]).is_empty());
    assert_eq!(check_against(&tree(&three), &[&entry[1..]]).len(), 2, "it grew");
    let found = check_against(&tree(&none), &[&entry]);
    assert!(found[0].message.contains("take it from the list"), "{}", found[0]);
}
