use super::Timestamp;

#[test]
fn dates_are_those_of_the_calendar() {
    let at = |seconds| Timestamp { seconds, nanoseconds: 0 }.to_string();
    assert_eq!(at(0), "1970-01-01 00:00");
    assert_eq!(at(951_782_399), "2000-02-28 23:59");
    assert_eq!(at(951_782_400), "2000-02-29 00:00");
    assert_eq!(at(4_107_542_399), "2100-02-28 23:59");
    assert_eq!(at(4_107_542_400), "2100-03-01 00:00");
    assert_eq!(at(-1), "1969-12-31 23:59");
    assert_eq!(at(i64::from(i32::MAX) + 1), "2038-01-19 03:14");
}
