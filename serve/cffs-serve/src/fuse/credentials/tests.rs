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
    let some = user(!(DAC_OVERRIDE | SETFCAP)).privileges;
    let without = Privileges { dac_override: false, setfcap: false, ..Privileges::ALL };
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

fn mount(id: u32, parent: u32, point: &[u8], options: &str, kind: &str) -> Vec<u8> {
    let (begin, end) =
        (format!("{id} {parent} 0:40 / "), format!(" {options} - {kind} /i rw,user_id=0\n"));
    [begin.as_bytes(), point, end.as_bytes()].concat()
}

#[test]
fn mounts_are_searched_as_bytes_and_up_to_a_limit() {
    let of_volume = |point: &[u8], options: &str| mount(36, 35, point, options, "fuse.cffs");
    let are_mapped = |list: &[u8]| Mounts::read(list).map(|mounts| mounts.are_mapped);
    let (plain, mapped) = (of_volume(b"/m", "rw"), of_volume(b"/m", "rw,relatime,idmapped"));
    let root = mount(35, 1, b"/", "rw,relatime", "ext4");
    let with_root = |mounts: &[&[u8]]| [&root[..], &mounts.concat()].concat();
    assert!(matches!(are_mapped(&with_root(&[&plain])), Ok(false)));
    assert!(are_mapped(&plain).is_err(), "a list of a process after chroot(2)");
    assert!(matches!(are_mapped(&with_root(&[&mapped])), Ok(true)));
    let not_text = [of_volume(b"/\xff", "rw"), of_volume(b"/\xff", "rw,idmapped")];
    assert!(matches!(are_mapped(&with_root(&[&not_text[1]])), Ok(true)));
    assert!(matches!(are_mapped(&with_root(&[&plain, &not_text[0], &mapped])), Ok(true)));
    let rest = MOUNTS_BYTES_MAX as usize - root.len();
    let fits = with_root(&[&vec![b'x'; rest]]);
    assert!(matches!(are_mapped(&fits), Ok(false)));
    assert!(are_mapped(&[fits, mapped].concat()).is_err());
    // Reading a directory fails.
    assert!(Mounts::read(File::open("/").expect("opened")).is_err());
}

#[test]
fn a_mount_on_a_directory_of_a_volume_is_found() {
    let root = mount(35, 35, b"/", "rw", "ext4");
    let volume = mount(36, 35, b"/m", "rw", "fuse.cffs");
    let are_covered = |others: &[Vec<u8>]| {
        let list = [root.clone(), others.concat()].concat();
        Mounts::read(&list[..]).expect("read").are_covered
    };
    let other = mount(38, 35, b"/other", "rw", "fuse.cffs");
    assert!(!are_covered(&[volume.clone(), other]), "next to it");
    let below = mount(37, 36, b"/m/a", "rw", "tmpfs");
    assert!(are_covered(&[volume.clone(), below.clone()]));
    assert!(are_covered(&[below, volume.clone()]), "after mount --move");
    let bound = mount(37, 36, b"/m/a", "ro", "fuse.cffs");
    assert!(are_covered(&[volume, bound]), "a bind mount of a part");
    let (on_root, in_root) =
        (mount(35, 1, b"/", "rw", "fuseblk.cffs"), mount(36, 35, b"/proc", "rw", "proc"));
    let list = [on_root, in_root].concat();
    assert!(Mounts::read(&list[..]).expect("read").are_covered, "the root directory is a volume");
}
