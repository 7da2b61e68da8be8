use super::{Portion, exact, parse, parse_u32, show};

#[test]
fn sizes_with_units_are_parsed() {
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        ("64k", 64 << 10),
        ("64K", 64 << 10),
        ("512M", 512 << 20),
        ("512MB", 512 << 20),
        ("4GiB", 4 << 30),
        ("1.5T", 3 << 39),
        ("16E", 0),
    ] {
        match (bytes, parse(text)) {
            (0, found) if text != "0" => assert!(found.is_err(), "{text}"),
            (_, found) => assert_eq!(found, Ok(bytes), "{text}"),
        }
    }
}

#[test]
fn an_exact_size_is_parsed_back_unchanged() {
    for (bytes, text) in [
        (0, "0"),
        (1, "1"),
        (1000, "1000"),
        (256 << 20, "256M"),
        (3 << 29, "1536M"),
        (1 << 60, "1E"),
    ] {
        assert_eq!((exact(bytes).as_str(), parse(text)), (text, Ok(bytes)));
    }
}

#[test]
fn an_invalid_size_is_refused() {
    for text in ["", "G", "4X", "4GG", "-1", "1.2.3", "4 G", "0x10", "99999999999999999999"] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert!(parse_u32("4G").is_err());
    assert_eq!(parse_u32("64k"), Ok(65536));
}

#[test]
fn a_portion_is_a_size_or_a_share() {
    assert_eq!(Portion::parse("1G"), Ok(Portion::Bytes(1 << 30)));
    assert_eq!(Portion::parse("5%").map(|portion| portion.of(1000)), Ok(50));
    assert_eq!(Portion::parse("0.5%").map(|portion| portion.of(1000)), Ok(5));
    for text in ["", "%", "x%", "-1%", "101%", "NaN%", "5 %x"] {
        assert!(Portion::parse(text).is_err(), "{text}");
    }
}

#[test]
fn sizes_show_with_three_digits() {
    assert_eq!(show(0), "0 B");
    assert_eq!(show(1023), "1023 B");
    assert_eq!(show(4 << 30), "4 GiB");
    assert_eq!(show(1536), "1.50 KiB");
    // Regression: these were 1024 KiB.
    assert_eq!(show((1 << 20) - 1), "1 MiB");
    assert_eq!(show((1 << 20) - (1 << 9)), "1 MiB");
    assert_eq!(show((1 << 20) - (1 << 10)), "1023 KiB");
    assert_eq!(show(u64::MAX), "16 EiB");
    assert_eq!(show(123 << 20 | 1 << 19), "124 MiB");
    assert_eq!(show(12 << 20 | 1 << 19), "12.5 MiB");
}
