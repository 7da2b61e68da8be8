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

fn status(uid: u32, no_new_privs: u32, capabilities: u64) -> String {
    format!(
        "Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t7\t7\t7\t7\nGroups:\t7 9 \n\
         CapEff:\t{capabilities:016x}\nNoNewPrivs:\t{no_new_privs}\n"
    )
}

#[test]
fn a_user_has_the_capabilities_of_its_process() {
    let user = |capabilities| user_shown(&status(0, 0, capabilities), 0).expect("a user");
    assert_eq!(user(u64::MAX >> 23), User::new(0, 7, vec![7, 9]));
    assert_eq!(user(0).privileges, Privileges::default(), "root without capabilities");
    let some = user(!(DAC_OVERRIDE | SYS_ADMIN)).privileges;
    let without = Privileges { dac_override: false, sys_admin: false, ..Privileges::ALL };
    assert_eq!(some, without);
}

#[test]
fn processes_whose_rights_are_unknown_are_refused() {
    let refused = |status: &str, asking| user_shown(status, asking).is_err();
    let known = status(1000, 0, 0);
    assert!(!refused(&known, 1000) && !refused(&known, UNKNOWN_ID));
    assert!(refused(&known, 1001), "the number is that of another process now");
    assert!(refused(&status(1000, 1, 0), 1000), "Landlock and seccomp need no_new_privs");
    assert!(refused("Uid:\t1\n", 1) && refused("", 0));
    assert!(refused(&status(UNKNOWN_ID, 0, 0), UNKNOWN_ID));
    assert!(has_ids_of_server(std::process::id()));
    assert!(!has_ids_of_server(0), "no process has this number");
}

#[test]
fn mounts_are_searched_as_bytes_and_up_to_a_limit() {
    let mount = |point: &[u8], options: &str| {
        let options = format!(" {options} - fuse.cffs /i rw,user_id=0\n");
        [b"36 35 0:40 / ", point, options.as_bytes()].concat()
    };
    let (plain, mapped) = (mount(b"/m", "rw,relatime"), mount(b"/m", "rw,relatime,idmapped"));
    let root = mount(b"/", "rw,relatime");
    let with_root = [root.clone(), plain.clone()].concat();
    assert!(matches!(has_mapped_mount(&with_root[..]), Ok(false)));
    assert!(has_mapped_mount(&plain[..]).is_err(), "a list of a process after chroot(2)");
    assert!(matches!(has_mapped_mount(&mapped[..]), Ok(true)));
    assert!(matches!(has_mapped_mount(&mount(b"/\xff", "rw,idmapped")[..]), Ok(true)));
    let after = [plain.clone(), mount(b"/\xff", "rw"), mapped.clone()].concat();
    assert!(matches!(has_mapped_mount(&after[..]), Ok(true)));
    let rest = MOUNTS_BYTES_MAX as usize - root.len();
    let fits = [root, vec![b'x'; rest]].concat();
    assert!(matches!(has_mapped_mount(&fits[..]), Ok(false)));
    assert!(has_mapped_mount(&[fits, mapped].concat()[..]).is_err());
    // Reading a directory fails.
    assert!(has_mapped_mount(File::open("/").expect("opened")).is_err());
}
