use super::*;

fn parts(file: &str) -> Option<(&str, &str)> {
    let (directory, name) = split(Path::new(file)).ok()?;
    Some((directory.to_str().expect("text"), name.to_str().expect("text")))
}

#[test]
fn the_last_component_is_the_name_and_never_a_dot() {
    assert_eq!(parts("a"), Some((".", "a")));
    assert_eq!(parts("/a"), Some(("/", "a")));
    assert_eq!(parts("a/b/c//"), Some(("a/b", "c")));
    assert_eq!(parts("a/./b"), Some(("a/.", "b")));
    assert_eq!(parts("./..x"), Some((".", "..x")));
    for refused in ["", ".", "..", "/", "//", "a/.", "a/..", "a/./", "a/..//"] {
        assert_eq!(parts(refused), None, "{refused}");
    }
}
