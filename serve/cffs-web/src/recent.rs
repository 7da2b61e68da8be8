//! The last messages of the program, for the page: a bounded number, without paths of the host.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The number of messages kept.
const MESSAGES_MAX: usize = 500;
/// The length to which messages are cut.
const MESSAGE_BYTES_MAX: usize = 1000;
/// Fields that contain paths of the host, which are left out.
const LEFT_OUT: [&str; 4] = ["image", "directory", "path", "program"];

/// The last messages; clones share one log.
#[derive(Clone, Debug, Default)]
pub struct RecentLog(Arc<Mutex<Messages>>);

#[derive(Debug, Default)]
struct Messages {
    last: VecDeque<Message>,
    newest: u64,
    /// Texts that are hidden, each with its replacement.
    hidden: Vec<(String, &'static str)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Message {
    /// The number of the message, from 1 on.
    pub number: u64,
    /// Seconds since 1970.
    pub at: u64,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: &'static str,
    pub text: String,
}

impl RecentLog {
    /// Replaces a text by a word in all messages that are shown. Must be called before the first message is
    /// logged.
    pub fn hide(&self, text: &str, word: &'static str) {
        // The root directory is a prefix of every path, and not secret.
        if text.len() > 1 {
            self.0.lock().hidden.push((text.to_owned(), word));
        }
    }

    /// The text with hidden parts replaced.
    pub(crate) fn clear(&self, text: &str) -> String {
        let hidden = &self.0.lock().hidden;
        hidden.iter().fold(text.to_owned(), |text, (path, word)| text.replace(path, word))
    }

    /// The number of the newest message.
    pub(crate) fn newest(&self) -> u64 {
        self.0.lock().newest
    }

    /// The newest `count` messages after a given one, of a level or a more severe one, that contain a text,
    /// ignoring case.
    pub(crate) fn messages(
        &self,
        after: u64,
        level: Level,
        text: &str,
        count: usize,
    ) -> Vec<Message> {
        let text = text.to_lowercase();
        let is_wanted = |message: &&Message| {
            message.number > after
                && message.level.parse::<Level>().is_ok_and(|of| of <= level)
                && message.text.to_lowercase().contains(&text)
        };
        let messages = self.0.lock();
        let mut found: Vec<Message> =
            messages.last.iter().rev().filter(is_wanted).take(count).cloned().collect();
        found.reverse();
        found
    }

    fn add(&self, level: Level, text: &str) {
        let mut text = self.clear(text);
        if text.len() > MESSAGE_BYTES_MAX {
            let end = (0..=MESSAGE_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
            text.truncate(end.unwrap_or(0));
            text.push('…');
        }
        let level = match level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let mut messages = self.0.lock();
        messages.newest += 1;
        let number = messages.newest;
        if messages.last.len() == MESSAGES_MAX {
            messages.last.pop_front();
        }
        messages.last.push_back(Message { number, at, level, text });
    }
}

impl<S: Subscriber> Layer<S> for RecentLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.add(*event.metadata().level(), &format!("{}{}", line.message, line.fields));
    }
}

/// A message under construction.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "message" => self.message.push_str(&value),
            name if LEFT_OUT.contains(&name) => {}
            // Debug output of structures is only for the server's log.
            _ if value.contains(" { ") => {}
            // Writing to a string cannot fail.
            name => drop(write!(self.fields, " {name}={value}")),
        }
    }
}

#[cfg(test)]
mod tests;
