//! The site and its logs.

use super::site::{Extent, Site, by_demand};

const EXTENT: Extent = Extent { pages: 300, visits: 2_000, seed: 1 };

#[test]
fn a_seed_generates_the_same_site_and_logs() {
    let (one, two) = (Site::new(EXTENT), Site::new(EXTENT));
    assert_eq!((one.file_count(), one.bytes()), (two.file_count(), two.bytes()));
    assert_eq!(one.log(1), two.log(1));
    assert_ne!(one.log(1), one.log(2), "each day has its own visitors");
    assert_ne!(one.bytes(), Site::new(Extent { seed: 2, ..EXTENT }).bytes());
}

#[test]
fn visitors_read_a_page_then_its_images_and_have_favourites() {
    let site = Site::new(EXTENT);
    let log = site.log(1);
    let visits: Vec<usize> = (0..log.len()).filter(|at| log[*at].starts_with("pages/")).collect();
    assert_eq!((visits.len(), visits[0]), (EXTENT.visits, 0));
    for (at, next) in visits.iter().zip(visits.iter().skip(1)) {
        let (section, page) = (&log[*at][6..9], &log[*at][10..16]);
        assert!((5..=11).contains(&(next - at)), "three icons and one to seven images");
        for image in &log[at + 1..*next] {
            assert_eq!(&image[7..10], section, "{image}");
            assert!(image.contains("icon") || image.contains(page), "{image} is not of {page}");
        }
    }
    let mut reads: Vec<usize> = vec![0; EXTENT.pages];
    visits.iter().for_each(|at| reads[log[*at][11..16].parse::<usize>().expect("a number")] += 1);
    reads.sort_unstable_by(|a, b| b.cmp(a));
    let tenth: usize = reads.iter().take(EXTENT.pages / 10).sum();
    // Zipf's law with 0.8 over 300 gives the first tenth 47%.
    assert!((820..1060).contains(&tenth), "{tenth} of {} visits", EXTENT.visits);
}

#[test]
fn the_most_read_file_comes_first_and_once() {
    let log = ["b", "a", "c", "a", "d", "a", "c"];
    assert_eq!(by_demand(&log), ["a", "c", "b", "d"]);
}

#[test]
fn directories_come_before_their_entries() {
    let dirs = Site::new(EXTENT).directories();
    for (at, dir) in dirs.iter().enumerate() {
        let parent = dir.rsplit_once('/').map(|(parent, _)| parent);
        assert!(parent.is_none_or(|parent| dirs[..at].iter().any(|it| it == parent)), "{dir}");
    }
    assert_eq!(dirs.len(), 2 + 2 * EXTENT.pages.div_ceil(50));
}
