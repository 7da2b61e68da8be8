use super::*;

const WRITTEN: Admission = Admission::Written { left_out: 0 };

/// Regression: a user made the log grow by 20,000 lines in less than a second.
#[test]
fn repeated_messages_are_counted() {
    let limit = Limit::new();
    let begun = Instant::now();
    let written = (0..20_000).filter(|_| limit.admit("read", begun) == WRITTEN).count();
    assert_eq!(written, MESSAGES_MAX as usize);
    assert_eq!(limit.admit("closed", begun), WRITTEN, "another place has its own");

    let later = begun + WINDOW;
    assert_eq!(limit.admit("closed", later), Admission::Written { left_out: 19_990 });
    let written = (0..100).filter(|_| limit.admit("read", later) == WRITTEN).count();
    assert!((9..=10).contains(&written), "a new time has begun: {written}");
}

#[test]
fn an_occasional_message_is_written() {
    let limit = Limit::new();
    let begun = Instant::now();
    for minute in 0..100 {
        assert_eq!(limit.admit("read", begun + minute * Duration::from_secs(60)), WRITTEN);
    }
}
