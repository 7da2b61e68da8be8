use super::*;

const DIR: InodeNo = InodeNo(20);

#[test]
fn a_name_is_found_until_it_is_forgotten() {
    let recent = RecentNames::new(1024);
    recent.note(DIR, 7, b"name", InodeNo(21));
    assert_eq!(recent.get(DIR, 7, b"name"), Some(InodeNo(21)));
    assert_eq!(recent.get(DIR, 7, b"nam"), None, "another name with this hash");
    assert_eq!(recent.get(InodeNo(30), 7, b"name"), None, "another directory");
    recent.note(DIR, 7, b"other", InodeNo(22));
    assert_eq!(recent.get(DIR, 7, b"name"), None, "the later one of a hash counts");
    assert_eq!(recent.get(DIR, 7, b"other"), Some(InodeNo(22)));
    recent.forget(DIR, 7);
    assert_eq!(recent.get(DIR, 7, b"other"), None);
}

#[test]
fn a_long_name_is_not_noted() {
    let recent = RecentNames::new(1024);
    for len in 1..=255 {
        let name = vec![b'n'; len];
        recent.note(DIR, len as u32, &name, InodeNo(21));
        let noted = recent.get(DIR, len as u32, &name);
        assert_eq!(noted.is_some(), len <= NOTED_BYTES_MAX, "{len} bytes");
    }
}

#[test]
fn the_number_of_names_is_bounded() {
    let recent = RecentNames::new(1024);
    for hash in 0..10_000 {
        recent.note(DIR, hash, b"name", InodeNo(21));
        let names: usize = recent.parts.iter().map(|part| part.lock().len()).sum();
        assert!(names <= 1024, "{names} names");
    }
    assert_eq!(recent.get(DIR, 9_999, b"name"), Some(InodeNo(21)), "the last one is there");
}
