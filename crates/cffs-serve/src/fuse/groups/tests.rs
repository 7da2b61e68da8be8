use super::*;

#[test]
fn a_group_is_found_as_a_whole_number() {
    let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t1 20 300 \nNStgid:\t4\n";
    assert!([1, 20, 300].into_iter().all(|gid| lists(status, gid)));
    assert!([0, 2, 30, 7, 4].into_iter().all(|gid| !lists(status, gid)));
    assert!(!lists("Name:\tcat\n", 0) && !lists("", 0));
}
