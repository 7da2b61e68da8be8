//! Why requests of the control interface were refused.
//!
//! A request is made by setting an extended attribute, and the kernel passes an error number on as the
//! answer. So the server keeps the reasons of the last refusals, and the caller that was refused reads them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use cffs::error::Error;
use serde_json::{Value, json};

#[cfg(test)]
mod tests;

/// More than one volume has of callers that are refused at the same time.
const KEPT_MAX: usize = 16;
/// The beginning of a request's value, by which it is recognised.
const VALUE_CHARS_MAX: usize = 200;

struct Refusal {
    name: &'static str,
    value: String,
    why: String,
}

/// The last refusals, the newest last.
#[derive(Default)]
pub(super) struct Refusals(Mutex<VecDeque<Refusal>>);

impl Refusals {
    /// Keeps the reason why setting the attribute to this value failed.
    pub fn add(&self, name: &'static str, value: &str, why: &Error) {
        let why = match why {
            // The words alone: the prefix of this error names the number.
            Error::Invalid(why) => (*why).to_owned(),
            why => why.to_string(),
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(Refusal { name, value: beginning(value), why });
    }

    /// All that are kept, for a caller that was refused.
    pub fn describe(&self) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let described = kept.iter().map(
            |Refusal { name, value, why }| json!({ "name": name, "value": value, "why": why }),
        );
        described.collect()
    }
}

/// The reason among these answers why setting the attribute to this value failed last.
pub(super) fn reason(answer: &Value, name: &str, value: &str) -> Option<String> {
    let value = beginning(value);
    let is_it = |refusal: &&Value| refusal["name"] == name && refusal["value"] == value;
    let refusal = answer.as_array()?.iter().rev().find(is_it)?;
    refusal["why"].as_str().map(str::to_owned)
}

fn beginning(value: &str) -> String {
    value.chars().take(VALUE_CHARS_MAX).collect()
}
