use super::*;

const LIST: &[u8] = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
    20 1 0:40 / /vol rw - fuse.cffs /i rw\n\
        21 1 0:40 /tree/a /bind\\040here rw - fuse.cffs /i rw\n\
        22 21 0:50 / /bind\\040here/below rw - tmpfs none rw\n\
        23 20 0:51 / /vol/other rw - tmpfs none rw\n\
        24 1 0:41 / /second rw - fuse.cffs /j rw\n\
        25 24 0:52 / /second/tree2 rw - tmpfs none rw\n";

#[test]
fn a_mount_point_below_a_bind_mount_of_the_tree_is_found() {
    let found = |path, holding| {
        let found = find(LIST, Path::new(path), holding, at_or_in);
        found.map(|point| point.to_str().expect("text").to_owned())
    };
    let below = Some(String::from("/bind here/below"));
    for path in ["/vol/tree", "/vol/tree/a", "/vol/tree/a/below"] {
        assert_eq!(found(path, 20), below, "{path}");
    }
    assert_eq!(found("/bind here/below", 21), below);
    for path in ["/vol/tree/b", "/vol/tree/a/below/it", "/vol/tre", "/vol/tree2"] {
        assert_eq!(found(path, 20), None, "{path}");
    }
    assert_eq!(found("/vol/other", 20).as_deref(), Some("/vol/other"));
    assert_eq!(found("/vol", 1).as_deref(), Some("/vol"));
    assert_eq!(found("/vol/other", 0).as_deref(), Some("/vol/other"), "of an unknown mount");
}

#[test]
fn a_mount_on_the_directory_itself_is_not_below_it() {
    let below = |point: &Path, top: &Path| point != top && at_or_in(point, top);
    let found = |path, holding| find(LIST, Path::new(path), holding, below);
    assert_eq!(found("/second", 24), Some(PathBuf::from("/second/tree2")));
    assert_eq!(found("/vol/tree/a", 20), Some(PathBuf::from("/bind here/below")));
    assert_eq!(found("/second/tree2", 25), None);
    assert_eq!(found("/vol/tree/a/below", 20), None);
}
