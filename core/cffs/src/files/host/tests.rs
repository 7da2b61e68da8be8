use std::fs;

use super::*;

/// Each directory was looked up from the top, which took time quadratic in the depth. Here that would fail,
/// since the first directory has been renamed.
#[test]
fn a_directory_is_looked_up_from_the_one_before_it() {
    let scratch = tempfile::tempdir().expect("made");
    let top = scratch.path();
    let mut places = Places::new();
    let mut add = |above, name: &str| places.add(above, OsStr::new(name));
    let outer = add(Place::TOP, "outer");
    let middle = add(outer, "middle");
    let (below, sibling) = (add(middle, "below"), add(middle, "sibling"));
    fs::create_dir_all(top.join("outer/middle/below")).expect("made");
    fs::create_dir(top.join("outer/middle/sibling")).expect("made");

    let places = Mutex::new(places);
    let mut way = Way::from(&Entry::dir_at(top).expect("opened"), top).expect("begun");
    way.lead(&places, middle).expect("found from the top");
    fs::rename(top.join("outer"), top.join("renamed")).expect("renamed");
    for (place, name) in [(below, "below"), (sibling, "sibling")] {
        let (found, trail) = way.lead(&places, place).expect("found");
        assert_eq!(trail.path(), top.join("outer/middle").join(name));
        let found = found.identity().expect("read");
        let path = top.join("renamed/middle").join(name);
        let expected = Entry::dir_at(&path).and_then(|dir| dir.identity()).expect("read");
        assert_eq!(found, expected, "{name}");
    }
}
