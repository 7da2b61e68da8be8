use super::counted;

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
