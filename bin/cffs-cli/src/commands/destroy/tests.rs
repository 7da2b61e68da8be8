use super::*;

#[test]
fn the_name_of_a_volume_is_the_last_part_of_its_url() {
    for (url, name) in [
        ("s3://bucket/a/tree", "tree"),
        ("s3://bucket/tree/", "tree"),
        ("s3://bucket", "bucket"),
        ("file:///srv/a@b/", "a@b"),
    ] {
        assert_eq!(name_of(Path::new(url)), name);
    }
}
