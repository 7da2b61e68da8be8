//! Administration of the volume's exports and clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Connections;
use super::exports::Export;
use super::service::Service;
use crate::shared::Exports;

/// The exports of a server, also while [`Server::serve`](super::Server::serve) runs.
pub(super) struct Administration {
    service: Arc<Service>,
    connections: Arc<Connections>,
    /// Why the last change was refused, for callers that get only an error number.
    refusal: Mutex<Option<String>>,
}

impl Administration {
    pub fn new(service: Arc<Service>, connections: Arc<Connections>) -> Administration {
        Administration { service, connections, refusal: Mutex::default() }
    }

    fn try_add(&self, text: &str) -> Result<(), String> {
        let refused = |why: String| format!("{text}: {why}");
        let export: Export = text.parse().map_err(|error| refused(format!("{error}")))?;
        self.service
            .exported()
            .add(export)
            .map_err(|error| refused(format!("{error}; an export is a directory of the volume")))?;
        tracing::info!(export = text, "exported");
        Ok(())
    }

    fn try_remove(&self, path: &str) -> Result<(), String> {
        let trimmed = path.trim_end_matches('/');
        let path = if trimmed.is_empty() { "/" } else { trimmed };
        if !self.service.exported().remove(path) {
            return Err(format!("{path} is not exported"));
        }
        tracing::info!(path, "no longer exported");
        Ok(())
    }

    fn noted(&self, changed: Result<(), String>) -> Result<(), String> {
        *self.refusal.lock() = changed.clone().err();
        changed
    }
}

impl Exports for Administration {
    fn calls(&self) -> Value {
        let calls = self.service.calls().into_iter();
        calls.map(|(name, count)| (name, Value::from(count))).collect()
    }

    fn describe(&self) -> Value {
        let exported = self.service.exported();
        let directories = exported.directories();
        let is_read_only =
            exported.volume.admin().is_read_only() || exported.observer.refuses_changes();
        let exports = directories.iter().map(|directory| {
            let export = &directory.export;
            json!({
                "path": export.path,
                "export": export.to_string(),
                "read_only": export.read_only || is_read_only,
                "clients": export.clients(),
            })
        });
        // The address of a connection that has just ended is unknown.
        let streams = self.connections.streams.lock();
        let peers = streams.iter().filter_map(|stream| stream.peer_addr().ok());
        let mut counts = BTreeMap::new();
        for peer in peers {
            *counts.entry(peer.ip().to_canonical()).or_insert(0_u64) += 1;
        }
        let clients = counts.iter().map(|(address, connections)| {
            json!({ "address": address.to_string(), "connections": connections })
        });
        json!({
            "exports": exports.collect::<Vec<_>>(),
            "clients": clients.collect::<Vec<_>>(),
            "refusal": *self.refusal.lock(),
        })
    }

    fn add(&self, text: &str) -> Result<(), String> {
        self.noted(self.try_add(text))
    }

    fn remove(&self, path: &str) -> Result<(), String> {
        self.noted(self.try_remove(path))
    }
}
