use super::*;

#[test]
fn a_descriptor_shows_the_device_number_of_its_mount() {
    let shown = "pos:\t0\nflags:\t02104002\nmnt_id:\t24\nino:\t90\nfuse_connection:\t7340034\n";
    assert_eq!(device_number(shown), Some((7, 2)));
    assert_eq!(device_number("pos:\t0\nfuse_connection:\t41\n"), Some((0, 41)));
    assert_eq!(device_number("pos:\t0\nino:\t90\n"), None);
    assert_eq!(connection_number((7, 2)), 7_340_034);
    assert_eq!(connection_number((0, 41)), 41);
}
