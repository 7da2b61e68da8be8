//! The reasons of the last refused requests.
//!
//! A request sets an extended attribute, and the kernel returns only an error number. So the server keeps the
//! reasons, and the refused caller reads them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use cffs::error::Error;
use serde_json::{Value, json};

#[cfg(test)]
mod tests;

/// The most refusals kept: more than a volume usually has at a time.
const KEPT_MAX: usize = 16;
/// The length of a value's prefix, which identifies a request.
const VALUE_CHARS_MAX: usize = 200;

struct Refusal {
    name: &'static str,
    value: String,
    why: String,
}

/// The last refusals, oldest first.
#[derive(Default)]
pub(super) struct Refusals(Mutex<VecDeque<Refusal>>);

impl Refusals {
    /// Records why setting the attribute to this value failed.
    pub fn add(&self, name: &'static str, value: &str, why: &Error) {
        let why = text(why);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(Refusal { name, value: beginning(value), why });
    }

    pub fn describe(&self) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let described = kept.iter().map(
            |Refusal { name, value, why }| json!({ "name": name, "value": value, "why": why }),
        );
        described.collect()
    }
}

/// The error for the caller, without the prefix that only repeats the error number.
pub fn text(why: &Error) -> String {
    match why {
        Error::Invalid(why) => (*why).to_owned(),
        why => why.to_string(),
    }
}

/// The reason in `answer` for the last failure to set this attribute to this value.
pub(super) fn reason(answer: &Value, name: &str, value: &str) -> Option<String> {
    let value = beginning(value);
    let is_it = |refusal: &&Value| refusal["name"] == name && refusal["value"] == value;
    let refusal = answer.as_array()?.iter().rev().find(is_it)?;
    refusal["why"].as_str().map(str::to_owned)
}

fn beginning(value: &str) -> String {
    value.chars().take(VALUE_CHARS_MAX).collect()
}
