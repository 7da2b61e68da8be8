use super::*;

fn outage(seconds: u64) -> News {
    News::Waits(Some(Outage { seconds, why: String::from("no answer") }))
}

/// The messages and the result of a sync with this news.
fn followed(news: Vec<News>, patience: Duration) -> (Vec<String>, anyhow::Result<()>) {
    let (sender, receiver) = mpsc::channel();
    news.into_iter().for_each(|news| sender.send(news).expect("received"));
    let mut said = Vec::new();
    let ended = follow(&receiver, patience, |what| said.push(what.to_owned()));
    (said, ended)
}

#[test]
fn a_sync_gives_up_when_an_outage_has_lasted_for_its_patience() {
    let (said, ended) = followed(vec![outage(3)], Duration::ZERO);
    assert_eq!(said, ["waiting for the store, which has not answered for 3 s: no answer"]);
    let why = ended.expect_err("it gave up").to_string();
    assert!(why.contains("not durable yet") && why.contains("(no answer)"), "{why}");
    assert!(why.contains("the server continues to try"), "{why}");
}

#[test]
fn a_sync_waits_for_a_store_that_answers_slowly_or_again() {
    let synced = || News::Synced(Ok(()));
    let (said, ended) =
        followed(vec![News::Waits(None), News::Waits(None), synced()], Duration::ZERO);
    assert_eq!(said, ["waiting until the changes are in the store"]);
    ended.expect("without an outage, it waits for as long as it takes");
    let (said, ended) = followed(vec![outage(3), outage(4), synced()], PATIENCE);
    assert_eq!(said.len(), 1, "{said:?}");
    ended.expect("the outage ended in time");
}
