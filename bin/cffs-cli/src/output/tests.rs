use super::{counted, name_for, without_controls};

#[test]
fn a_count_of_one_is_in_the_singular() {
    for (count, one, expected) in [
        (0, "problem", "0 problems"),
        (1, "problem", "1 problem"),
        (2, "problem", "2 problems"),
        (1, "directory", "1 directory"),
        (2, "directory", "2 directories"),
        (1, "cylinder group", "1 cylinder group"),
        (21, "cylinder group", "21 cylinder groups"),
    ] {
        assert_eq!(counted(count, one), expected);
    }
}

#[test]
fn messages_move_no_cursor() {
    let text = String::from("cffs: a\u{1b}[2J\rb\u{9b}: failed\n\tna\u{ef}ve");
    assert_eq!(without_controls(text), "cffs: a\\u{1b}[2J\\rb\\u{9b}: failed\n\tna\u{ef}ve");
    let name = b"a\x1b[2J\n\xff";
    assert_eq!(*name_for(name, false), *name);
    assert_eq!(*name_for(name, true), *br"a\u{1b}[2J\n\xff");
}
