//! Progress of long work on standard error, if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// A bar that counts to `total` in `unit` ("entries", "inodes"), or a plain counter if the total is
/// unknown.
pub fn counter(label: &str, total: Option<u64>, unit: &str, quiet: bool) -> ProgressBar {
    let template = match total {
        Some(_) => {
            format!("{{prefix}} [{{bar:30}}] {{human_pos}}/{{human_len}} {unit} {{msg}} {{eta}}")
        }
        None => format!("{{prefix}} {{spinner}} {{human_pos}} {unit} {{msg}} {{elapsed}}"),
    };
    let bar = ProgressBar::with_draw_target(total, target(quiet)).with_prefix(label.to_owned());
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style.progress_chars("=> "));
    }
    if !quiet && output::is_watched() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

fn target(quiet: bool) -> ProgressDrawTarget {
    if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() }
}
