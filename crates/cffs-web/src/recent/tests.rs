use super::*;
use tracing_subscriber::prelude::*;

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
