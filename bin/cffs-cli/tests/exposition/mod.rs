//! A strict parser of Prometheus's text format, version 0.0.4: it refuses everything that a
//! scraping server may refuse.

use std::collections::{BTreeMap, BTreeSet};

/// A sample: its labels, sorted, and its value.
pub type Sample = (Vec<(String, String)>, f64);

/// A metric with its type and samples.
#[derive(Debug, Default)]
pub struct Metric {
    pub kind: String,
    pub samples: Vec<Sample>,
}

/// The metrics by name, or the first line that violates the format, with the reason.
pub fn parse(text: &str) -> Result<BTreeMap<String, Metric>, String> {
    if !text.ends_with('\n') {
        return Err(String::from("the last line has no end"));
    }
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        let broken = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or(broken("no text"))?;
            check_name(name).map_err(|why| broken(&why))?;
            if !helped.insert(name.to_owned()) || help.is_empty() {
                return Err(broken("a second or empty HELP"));
            }
            current = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or(broken("no type"))?;
            if name != current || metrics.contains_key(name) {
                return Err(broken("TYPE does not follow its HELP, before all samples"));
            }
            if !["counter", "gauge"].contains(&kind) {
                return Err(broken("an unknown type"));
            }
            if (kind == "counter") != name.ends_with("_total") {
                return Err(broken("counters, and nothing else, end in _total"));
            }
            metrics.insert(name.to_owned(), Metric { kind: kind.to_owned(), samples: Vec::new() });
        } else {
            let (name, sample) = sample(line).map_err(|why| broken(&why))?;
            let metric = metrics.get_mut(name).ok_or(broken("a sample before its TYPE"))?;
            if name != current {
                return Err(broken("the samples of a metric do not stand together"));
            }
            if metric.samples.iter().any(|(labels, _)| *labels == sample.0) {
                return Err(broken("the same labels twice"));
            }
            metric.samples.push(sample);
        }
    }
    match metrics.iter().find(|(_, metric)| metric.samples.is_empty()) {
        Some((name, _)) => Err(format!("{name} has no sample")),
        None => Ok(metrics),
    }
}

fn sample(line: &str) -> Result<(&str, Sample), String> {
    let (name, rest) = line.split_once('{').ok_or("no labels")?;
    check_name(name)?;
    let mut labels = Vec::new();
    let mut rest = rest;
    loop {
        let (label, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        check_name(label)?;
        let (value, after) = quoted(after)?;
        labels.push((label.to_owned(), value));
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => {
                let value = after.strip_prefix("} ").ok_or("no value")?;
                let value = value.parse().map_err(|_| "the value is no number")?;
                labels.sort();
                return Ok((name, (labels, value)));
            }
        }
    }
}

/// The text up to the closing quote, unescaped, and the rest.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, c @ ('"' | '\\'))) => c,
                _ => return Err(String::from("an unknown escape")),
            }),
            c => value.push(c),
        }
    }
    Err(String::from("no closing quote"))
}

fn check_name(name: &str) -> Result<(), String> {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let goes_on = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if starts && goes_on { Ok(()) } else { Err(format!("'{name}' is no name")) }
}
