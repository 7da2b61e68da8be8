//! The cost of requests to an object store.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

/// Prices in US dollars: per 1,000 requests of a kind, and per 10^9 bytes. The defaults are those of Amazon
/// S3 Standard in us-east-1 for a reader in the same region, according to public pages of November 2026.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    puts: f64,
    gets: f64,
    heads: f64,
    lists: f64,
    deletes: f64,
    sent_gb: f64,
    received_gb: f64,
}

impl Default for Prices {
    fn default() -> Prices {
        Prices {
            puts: 0.005,
            gets: 0.0004,
            heads: 0.0004,
            lists: 0.005,
            deletes: 0.0,
            sent_gb: 0.0,
            received_gb: 0.0,
        }
    }
}

impl Prices {
    /// Reads prices from a JSON file.
    pub fn read(path: &Path) -> anyhow::Result<Prices> {
        let place = || format!("the prices in {}", path.display());
        let text = std::fs::read_to_string(path).with_context(place)?;
        serde_json::from_str(&text).with_context(place)
    }

    /// Adds the cost of the store's requests to its counters, if there are any, as `usd`.
    pub fn add_to(&self, stats: &mut Value) {
        let Some(store) = stats.get_mut("store").and_then(Value::as_object_mut) else { return };
        let priced = [
            ("puts", self.puts, 1e3),
            ("gets", self.gets, 1e3),
            ("heads", self.heads, 1e3),
            ("lists", self.lists, 1e3),
            ("deletes", self.deletes, 1e3),
            ("sent_bytes", self.sent_gb, 1e9),
            ("received_bytes", self.received_gb, 1e9),
        ];
        let cost = priced.map(|(name, price, unit)| {
            store.get(name).and_then(Value::as_f64).unwrap_or(0.0) / unit * price
        });
        // Amounts below a millionth of a dollar would only be rounding errors.
        let usd = (cost.iter().sum::<f64>() * 1e6).round() / 1e6;
        store.insert(String::from("usd"), Value::from(usd));
    }
}

#[cfg(test)]
mod tests;
