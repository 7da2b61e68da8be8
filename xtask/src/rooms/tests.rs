//! Trees with large types.

use super::*;

fn tree(files: &[(&str, &str)]) -> Tree {
    let mut tree = Tree::default();
    for (path, text) in files {
        tree.files.insert(path.into(), text.to_string());
    }
    tree
}

fn sizes_of(files: &[(&str, &str)]) -> Vec<(String, usize, usize)> {
    let sizes = sizes(&tree(files)).into_iter();
    sizes.map(|((_, path), size)| (path, size.files.len(), size.methods)).collect()
}

fn said(found: &[Finding]) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn inherent_methods_are_counted_by_type() {
    let text = "
struct Plain;
enum Generic<T> { A(T) }
impl Plain {
    /// fn in_words
    pub const fn one() -> fn(u8) { fn inner() {} }
    fn two(a: impl Fn(u8) -> u8) -> impl Fn(u8) { move |_| {} }
}
impl<T: Fn(u8) -> u8> Generic<T> where T: for<'a> Fn(&'a u8) { fn three() {} }
impl Clone for Plain { fn clone(&self) -> Plain { Plain } }
impl<F: Fn(u8) -> u8> From<F> for Plain { fn from(_: F) -> Plain { Plain } }
fn free() -> impl Iterator<Item = u8> { [].into_iter() }
";
    let expected = [("Generic".to_owned(), 1, 1), ("Plain".to_owned(), 1, 2)];
    assert_eq!(sizes_of(&[("c/src/lib.rs", text)]), expected);
}

#[test]
fn an_impl_belongs_to_the_nearest_type_of_its_name() {
    let found = sizes_of(&[
        ("c/src/a.rs", "pub struct State; impl State { fn a() {} }"),
        ("c/src/b/mod.rs", "pub struct State; impl State { fn b() {} }"),
        ("c/src/b/more.rs", "impl State { fn c() {} fn d() {} }"),
        ("c/src/b/tests.rs", "impl State { fn e() {} }"),
        ("c/src/b/deep.rs", "mod own { struct State; impl State { fn f() {} } }"),
        ("d/src/a.rs", "pub struct State; impl State { fn a() {} }"),
    ]);
    let expected = [("a::State", 1, 1), ("b::State", 2, 3), ("b::deep::own::State", 1, 1)];
    let expected = expected.into_iter().chain([("a::State", 1, 1)]);
    let expected: Vec<_> = expected.map(|(path, f, m)| (path.to_owned(), f, m)).collect();
    assert_eq!(found, expected);
}

#[test]
fn types_beyond_a_limit_are_found_unless_known() {
    let methods: String = (0..=METHODS_MAX).map(|n| format!("fn f{n}() {{}}")).collect();
    let tall = tree(&[("c/src/a.rs", &format!("struct Tall; impl Tall {{ {methods} }}"))]);
    let found = said(&check_against(&tall, &[]));
    let expected = "c/src/a.rs:1: the type a::Tall has 61 methods in 1 files, of at most 60 in 3: give a \
                    part of its fields to a type of their own";
    assert_eq!(found, [expected]);
    assert!(check_against(&tall, &[("c/src", "a::Tall", 1, 61)]).is_empty());
    assert!(check_against(&tall, &[("c/src", "a::Tall", 1, 70)]).is_empty());

    let part = "impl Wide { fn f() {} }";
    let mut wide = tree(&[("c/src/w/mod.rs", &format!("struct Wide; {part}"))]);
    for file in ["a", "b"] {
        wide.files.insert(format!("c/src/w/{file}.rs").into(), part.to_owned());
    }
    assert!(check_against(&wide, &[]).is_empty());
    let found = check_against(&wide, &[("c/src", "w::Wide", 4, 4)]);
    assert!(found[0].message.contains("take it from the list"), "{}", found[0]);
    wide.files.insert("c/src/w/c.rs".into(), part.to_owned());
    assert_eq!(check_against(&wide, &[]).len(), 1);
    assert_eq!(check_against(&wide, &[("d/src", "w::Wide", 4, 4)]).len(), 2);
}
