//! Makes everything on a served volume durable, and says what that waits for.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use cffs_serve::served::OUTAGE;
use cffs_serve::served::control::{self, AskError, Question};
use serde_json::Value;

use crate::output::note;

#[cfg(test)]
mod tests;

/// How long a command waits silently.
const SILENT_FOR: Duration = Duration::from_secs(3);
/// How often it asks the server whether the store can be reached.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it waits for a store that cannot be reached: commands end within two minutes then.
const PATIENCE: Duration = Duration::from_secs(110);

/// News about a sync.
enum News {
    Synced(Result<(), AskError>),
    /// It waits for a store, which may be one that cannot be reached.
    Waits(Option<Outage>),
}

/// A store that cannot be reached.
struct Outage {
    seconds: u64,
    why: String,
}

/// Returns when all earlier changes of the volume `name`, which is asked through the path `asked`, are
/// durable. If the volume is in a store, the command prints that it waits. In an outage of the store, it
/// gives up after a while; the server continues to try.
///
/// # Errors
///
/// [`AskError`]; the outage.
pub fn sync(command: &str, name: &Path, asked: &Path) -> anyhow::Result<()> {
    let say = |what: &str| note!("cffs {command}: {}: {what}", name.display());
    follow(&ask(asked), PATIENCE, say)
}

/// Returns when the sync has ended, or when it has waited for a store in an outage for `patience`.
fn follow(
    news: &Receiver<News>,
    patience: Duration,
    mut say: impl FnMut(&str),
) -> anyhow::Result<()> {
    let began = Instant::now();
    let (mut is_said, mut was_outage) = (false, false);
    loop {
        let outage = match news.recv()? {
            News::Synced(synced) => return Ok(synced?),
            News::Waits(outage) => outage,
        };
        match &outage {
            Some(Outage { seconds, why }) if !was_outage => {
                was_outage = true;
                say(&format!(
                    "waiting for the store, which has not answered for {seconds} s: {why}"
                ));
            }
            None if !is_said => say("waiting until the changes are in the store"),
            _ => {}
        }
        is_said = true;
        if let Some(Outage { why, .. }) = outage.filter(|_| began.elapsed() >= patience) {
            bail!(
                "not durable yet, since the store cannot be reached ({why}); the server continues to try"
            );
        }
    }
}

/// Asks the server for a sync, and later whether the store can be reached. Its answers may take long.
fn ask(asked: &Path) -> Receiver<News> {
    let (sender, news) = mpsc::channel();
    let (path, synced) = (asked.to_owned(), sender.clone());
    thread::spawn(move || synced.send(News::Synced(control::sync(&path))));
    let path = asked.to_owned();
    thread::spawn(move || watch(&path, &sender));
    news
}

/// Reports the state of the store until the receiver is gone. A volume without a store has none.
fn watch(path: &Path, sender: &Sender<News>) {
    thread::sleep(SILENT_FOR);
    while let Ok(stats) = control::ask(path, Question::Stats) {
        let Some(store) = stats["store"].as_object() else { return };
        let outage = store.get(OUTAGE).and_then(Value::as_str).map(|why| Outage {
            seconds: store["outage_seconds"].as_u64().unwrap_or(0),
            why: why.to_owned(),
        });
        if sender.send(News::Waits(outage)).is_err() {
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
}
