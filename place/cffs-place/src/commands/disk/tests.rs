use super::*;

#[test]
fn a_range_of_bytes_has_a_beginning_and_an_end() {
    assert_eq!(bytes("1K..2M"), Ok(1024..2 << 20));
    for wrong in ["1G", "2G..1G", "1G..1G", "..", "1G..", "1X..2G"] {
        assert!(bytes(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_cache_that_the_kernel_does_not_flush_is_named() {
    let mut disk = Disk {
        size_bytes: 1 << 30,
        command_ms: 0.1,
        access_ms: 8.0,
        rotation_ms: Some(8.0),
        rpm: Some(7500.0),
        seeks: Vec::new(),
        zones: Vec::new(),
        read_ahead_bytes: 0,
        write_cache: None,
        write_cache_flushed: None,
        late: None,
        omitted: Vec::new(),
    };
    assert_eq!(writes(&disk), "not tried (--try-writes)");
    disk.write_cache_flushed = Some(false);
    assert!(writes(&disk).contains("according to the kernel; not tried"));
    disk.write_cache = Some(false);
    assert_eq!(writes(&disk), "acknowledged when they are on the platter");
    disk.write_cache = Some(true);
    assert!(writes(&disk).contains("does not flush"));
    disk.write_cache_flushed = Some(true);
    assert_eq!(writes(&disk), "acknowledged before they are on the platter");
}

#[test]
fn a_warning_says_that_other_programs_disturbed() {
    let mut disk = Disk {
        size_bytes: 1 << 30,
        command_ms: 0.1,
        access_ms: 8.0,
        rotation_ms: Some(8.0),
        rpm: Some(7500.0),
        seeks: Vec::new(),
        zones: Vec::new(),
        read_ahead_bytes: 0,
        write_cache: None,
        write_cache_flushed: None,
        late: Some(0.05),
        omitted: Vec::new(),
    };
    assert_eq!(noise(&disk, "0.20 0.10 0.05 1/100 1"), None);
    assert!(
        noise(&disk, "1.50 0.10 0.05 1/100 1").is_some_and(|why| why.starts_with("1.5 programs"))
    );
    disk.late = Some(0.31);
    assert!(noise(&disk, "0.20 0.10 0.05 1/100 1").is_some_and(|why| why.starts_with("31% of")));
}
