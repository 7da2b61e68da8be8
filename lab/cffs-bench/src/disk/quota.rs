//! Volumes on a network: limited by requests per second and bytes per second.
//!
//! The model has a token bucket for each of the two limits, and a fixed round-trip latency. Requests are
//! served in order, and any number of them overlap within the quota, as on such volumes. Bursts are not
//! modelled: a measurement should not depend on saved credit.

use super::Nanos;

/// The limits of a volume.
#[derive(Clone, Copy, Debug)]
pub struct QuotaSpec {
    pub requests_per_sec: f64,
    pub bytes_per_sec: f64,
    /// A larger request counts as several.
    pub request_bytes_max: u64,
    /// The time that a request takes when neither limit is reached.
    pub latency: Nanos,
}

/// The times at which the two buckets have their next token.
#[derive(Clone, Debug)]
pub struct Quota {
    spec: QuotaSpec,
    requests_free: Nanos,
    bytes_free: Nanos,
}

impl Quota {
    /// An unused volume.
    pub fn new(spec: QuotaSpec) -> Quota {
        Quota { spec, requests_free: Nanos::ZERO, bytes_free: Nanos::ZERO }
    }

    /// Admits a request of `bytes` at `now`; returns when it completes.
    pub fn admit(&mut self, bytes: u64, now: Nanos) -> Nanos {
        let units = bytes.div_ceil(self.spec.request_bytes_max).max(1);
        let per_request = Nanos::from_ms(units as f64 * 1e3 / self.spec.requests_per_sec);
        let per_bytes = Nanos::from_ms(bytes as f64 * 1e3 / self.spec.bytes_per_sec);
        self.requests_free = self.requests_free.max(now) + per_request;
        self.bytes_free = self.bytes_free.max(now) + per_bytes;
        self.requests_free.max(self.bytes_free) + self.spec.latency
    }
}
