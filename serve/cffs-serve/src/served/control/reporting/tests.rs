use super::*;

fn listed(list: &[u8]) -> Option<Vec<(FileType, Vec<u8>)>> {
    let mut listed = Vec::new();
    let all = decode(list, |file_type, path| {
        listed.push((file_type, path.to_vec()));
        Ok::<(), AskError>(())
    });
    all.ok().map(|()| listed)
}

/// A list of files far down takes about the bytes of their names.
#[test]
fn a_list_of_changes_is_as_long_as_its_names() {
    let deep = b"d/".repeat(2048);
    let mut paths = vec![Vec::new(), b"a".to_vec(), b"a/b".to_vec(), b"b".to_vec()];
    paths.extend((0..1000).map(|number| [&deep[..], format!("{number}").as_bytes()].concat()));
    let long = [[b'x'; 70_000], [b'y'; 70_000]].concat();
    paths.extend([long[..70_000].to_vec(), long]);
    let mut list = ChangeList::default();
    for path in &paths {
        let change = Change { path, file_type: FileType::Fifo };
        assert!(list.push(&change).is_continue());
    }
    assert!(list.bytes.len() < 250_000, "{}", list.bytes.len());
    let expected: Vec<_> = paths.into_iter().map(|path| (FileType::Fifo, path)).collect();
    assert!(listed(&list.bytes) == Some(expected), "the list differs");
}

#[test]
fn a_damaged_list_of_changes_is_refused() {
    let file_type = FileType::Regular as u8;
    assert_eq!(listed(&[file_type, 0, 0, b'a']), None, "no end");
    assert_eq!(listed(&[file_type, 1, 0, b'a', 0]), None, "nothing is before it");
    assert_eq!(listed(&[99, 0, 0, b'a', 0]), None, "no type");
    assert_eq!(listed(&[file_type, 0]), None, "no path");
    assert_eq!(listed(&[]), Some(Vec::new()));
}
