//! The picture agrees with the report, whatever the names.

use cffs_serve::layout::{DirectoryReport, LayoutReport};

use super::{compressed, lines, of_one_key, picture, surplus};
use cffs::files::layout::ClusterUse;

fn report(directories: Vec<DirectoryReport>) -> LayoutReport {
    let requests = directories.iter().map(|dir| dir.requests).sum();
    LayoutReport { volume_bytes: 1 << 30, requests, directories, ..LayoutReport::default() }
}

fn rectangles(drawn: &str) -> usize {
    drawn.matches("<rect").count()
}

#[test]
fn each_place_of_a_directory_is_drawn() {
    let dir = |contents| DirectoryReport { files: 3, requests: 1, contents, ..Default::default() };
    let near = picture::draw(&report(vec![dir(vec![0..4096, 4096..8192])]), "near");
    let apart =
        picture::draw(&report(vec![dir(vec![0..4096, 40960..45056, 81920..86016])]), "apart");
    assert_eq!(rectangles(&apart), rectangles(&near) + 1);
    let nothing = picture::draw(&report(Vec::new()), "nothing");
    assert_eq!(rectangles(&nothing), 2, "the sheet and the device");
}

#[test]
fn a_volume_of_any_size_fits_the_picture() {
    let dir = |end: u64| DirectoryReport {
        contents: vec![0..4096, end - 4096..end],
        ..Default::default()
    };
    for end in [8192, 1 << 30, 1 << 50] {
        let drawn = picture::draw(&report(vec![dir(end)]), "volume");
        assert!(drawn.len() < 10_000 && rectangles(&drawn) == 4, "{end}: {}", rectangles(&drawn));
    }
}

/// Regression: on a dark page it had a white background, and its texts were too small for a column of the
/// page.
#[test]
fn the_picture_is_dark_if_preferred_and_no_wider_than_its_map() {
    let dir = DirectoryReport {
        contents: vec![0..4096, 4096..8192],
        names: vec![8192..12288, 16384..20480],
        files: 1,
        requests: 1,
        ..Default::default()
    };
    let drawn = picture::draw(&report(vec![dir]), "dark");
    let (_, style) = drawn.split_once("@media (prefers-color-scheme: dark) {").expect("a style");
    let (style, shapes) = style.split_once("</style>").expect("its end");
    for class in ["ground", "map", "names", "soft"] {
        assert!(style.contains(&format!(".{class} {{ fill: #")), "{class}: {style}");
        assert!(shapes.contains(&format!("class=\"{class}\"")), "nothing is {class}: {shapes}");
    }
    assert!(style.contains("text, .names {"), "{style}");
    assert!(drawn.contains(" viewBox=\"0 0 816 "), "{drawn}");
}

#[test]
fn names_are_escaped() {
    let path = String::from("<script>&\u{1b}[2J");
    let dir = DirectoryReport { path, files: 1, requests: 1, ..Default::default() };
    let drawn = picture::draw(&report(vec![dir]), "<b>");
    assert!(drawn.contains("&lt;script&gt;&amp;[2J") && drawn.contains("&lt;b&gt;"));
    assert!(!drawn.contains("<script>") && !drawn.contains('\u{1b}'));
}

#[test]
fn pairs_are_counted_in_grammatical_words() {
    assert_eq!(of_one_key(0, 0), "0 of 0 pairs of neighbours share a key of placement");
    assert_eq!(of_one_key(1, 1), "1 of 1 pair of neighbours shares a key of placement");
    assert_eq!(of_one_key(1, 9), "1 of 9 pairs of neighbours shares a key of placement");
    assert_eq!(of_one_key(8, 9), "8 of 9 pairs of neighbours share a key of placement");
}

/// Regression: the column of paths was padded to the longest one: a tree 3,000 directories deep took 72 MB of
/// output.
#[test]
fn paths_are_printed_without_padding() {
    const DEPTH: usize = 300;
    let dir = |depth| DirectoryReport { path: "directory/".repeat(depth), ..Default::default() };
    let report = report((0..DEPTH).map(dir).collect());
    let paths: usize = report.directories.iter().map(|dir| dir.path.len()).sum();
    let printed: usize = lines(&report).iter().map(String::len).sum();
    assert!(printed <= paths + 100 * (DEPTH + 1), "{printed} bytes for {paths} of paths");
}

#[test]
fn the_use_of_clusters_is_printed_as_sentences() {
    assert!(compressed(&ClusterUse::default()).is_empty());
    let used = ClusterUse {
        clusters: 200,
        incomplete: 1,
        bytes: 12 << 20,
        stored_bytes: 3 << 20,
        dead_bytes: 64 << 10,
        shared_bytes: 0,
    };
    let told = [
        "12 MiB of contents are in 200 clusters of 3 MiB: 4.00 to 1",
        "in the clusters, 64 KiB of contents are dead, and 0 B are shared",
        "not counted: dead contents of 1 cluster that other files also use",
    ];
    assert_eq!(compressed(&used), told);
    assert_eq!(compressed(&ClusterUse { incomplete: 0, ..used }), told[..2]);
}

#[test]
fn a_scan_that_is_mostly_for_nothing_is_reported() {
    let of = |surplus_bytes| {
        surplus(&LayoutReport { read_bytes: 100 << 20, surplus_bytes, ..LayoutReport::default() })
    };
    assert_eq!(of(50 << 20), "");
    assert_eq!(of(99 << 20), ", 99 MiB of that neither names nor contents");
}
