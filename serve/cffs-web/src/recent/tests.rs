use super::*;
use tracing_subscriber::prelude::*;

/// Regression: every mount's page had a line with "granted=Granted { max_write: …".
#[test]
fn fields_with_structures_are_left_out() {
    let log = RecentLog::default();
    let subscriber = tracing_subscriber::registry().with(log.clone());
    tracing::subscriber::with_default(subscriber, || {
        let granted = "Granted { max_write: 1048576, splice: true }";
        tracing::info!(transport = "io_uring", granted = %granted, calls = 3, "mounted");
    });
    let [message] = &log.messages(0, Level::TRACE, "", 10)[..] else { panic!("not one message") };
    assert_eq!(message.text, "mounted transport=io_uring calls=3");
}

#[test]
fn messages_are_kept_up_to_a_count_and_a_length_and_hide_the_host() {
    let log = RecentLog::default();
    log.hide("/srv/secret/tree.cffs", "IMAGE");
    log.hide("/", "DIR");
    let subscriber = tracing_subscriber::registry().with(log.clone());
    tracing::subscriber::with_default(subscriber, || {
        tracing::info!(image = "/elsewhere", count = 3, "opened");
        tracing::error!("reading /srv/secret/tree.cffs: gone");
    });
    let all = log.messages(0, Level::TRACE, "", 10);
    let texts: Vec<&str> = all.iter().map(|message| message.text.as_str()).collect();
    assert_eq!(texts, ["opened count=3", "reading IMAGE: gone"]);
    assert_eq!(log.messages(0, Level::WARN, "", 10), all[1..]);
    assert_eq!(log.messages(0, Level::TRACE, "OPEN", 10), all[..1]);
    assert_eq!(log.messages(1, Level::TRACE, "", 10), all[1..]);

    for _ in 0..2 * MESSAGES_MAX {
        log.add(Level::INFO, &"ä".repeat(MESSAGE_BYTES_MAX));
    }
    let all = log.messages(0, Level::TRACE, "", usize::MAX);
    assert_eq!(all.len(), MESSAGES_MAX);
    assert!(all.iter().all(|message| message.text.len() <= MESSAGE_BYTES_MAX + '…'.len_utf8()));
    assert_eq!(log.newest(), 2 + 2 * MESSAGES_MAX as u64);
}
