use super::*;
use crate::mirror::tests::volume;

#[test]
fn only_a_complete_list_of_names_is_accepted() {
    let decoded = names(b"Da\0Yb\0Nc\0\0").expect("complete");
    let letter = |name: &[u8]| decoded.get(name).copied();
    assert_eq!([b"a", b"b", b"c"].map(|name| letter(name)), [b'D', b'Y', b'N'].map(Some));
    assert!(names(b"\0").expect("empty").is_empty());
    for list in
        [&b""[..], b"Da", b"Da\0", b"Da\0Yb", b"Da\0\0Yb\0\0", b"\0\0", b"Za\0\0", b"Da\0\0\0"]
    {
        let error = names(list).expect_err("damaged");
        assert!(!error.is::<Renames>(), "{}", list.escape_ascii());
    }
    for list in [&b"Rold\0Tnew\0Dnew\0\0"[..], b"Da\0Xb\0\0"] {
        assert!(names(list).expect_err("refused").is::<Renames>());
    }
}

#[test]
fn a_directory_loses_what_its_list_does_not_have() {
    let files = volume();
    for dir in ["/kept", "/gone", "/becomes-file", "/was-file"] {
        files.make_dir(dir).expect("made");
        files.write(format!("{dir}/below"), b"below").expect("written");
    }
    for file in ["/same", "/changed", "/removed", "/becomes-dir"] {
        files.write(file, b"file").expect("written");
    }
    let list = b"Dkept\0Dbecomes-dir\0Ybecomes-file\0Nwas-file\0Nsame\0Ychanged\0Ynew\0\0";
    let error = remove_others(&files.root(), &names(list).expect("complete"));
    // No archive has this file: what is there stays, and is reported.
    assert!(error.expect_err("reported").to_string().contains("was-file"));
    let mut left: Vec<_> =
        files.read_dir("/").expect("listed").into_iter().map(|item| item.name).collect();
    left.sort_unstable();
    assert_eq!(left, [&b"changed"[..], b"kept", b"same", b"was-file"]);
    assert_eq!(files.read("/was-file/below").expect("kept"), b"below");
    assert_eq!(files.read("/kept/below").expect("kept"), b"below");
}
