use super::*;

#[test]
fn a_group_matches_only_as_a_whole_number() {
    let status = "Name:\tcat\nGid:\t7\t7\t7\t7\nGroups:\t1 20 300 \nNStgid:\t4\n";
    assert!([1, 20, 300].into_iter().all(|gid| lists_group(status, gid)));
    assert!([0, 2, 30, 7, 4].into_iter().all(|gid| !lists_group(status, gid)));
    assert!(!lists_group("Name:\tcat\n", 0) && !lists_group("", 0));
}

#[test]
fn capabilities_are_read_from_the_effective_set() {
    let status = |set| format!("CapPrm:\t000001ffffffffff\nCapEff:\t{set}\nCapBnd:\t0\n");
    assert_ne!(effective(&status("000001ffffffffff")) & FSETID, 0);
    assert_ne!(effective(&status("0000000000000010")) & FSETID, 0);
    assert_eq!(effective(&status("000001ffffffffef")) & FSETID, 0);
    assert_eq!(effective(&status("none")), 0);
    assert_eq!(effective("Name:\tcat\n"), 0);
}

#[test]
fn the_user_is_the_file_system_user() {
    let status = "Name:\tcat\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9\n";
    assert_eq!(id_for_files(status, "Uid:"), Some(4));
    assert_eq!(id_for_files(status, "Gid:"), Some(8));
    assert_eq!(id_for_files("", "Uid:"), None);
}
