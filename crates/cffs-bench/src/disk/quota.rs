//! Volumes on a network: limited by requests per second and bytes per second.
//!
//! Two token buckets, one for each limit, and a fixed latency for the way there and back. Requests
//! are served in order and overlap freely, as they do on such volumes; what they cannot do is
//! exceed the quota. Bursts are not modelled: a measurement should not depend on saved-up credit.

use super::Nanos;

/// The terms of a volume.
#[derive(Clone, Copy, Debug)]
pub struct QuotaSpec {
    pub requests_per_sec: f64,
    pub bytes_per_sec: f64,
    /// A larger request counts as several.
    pub request_bytes_max: u64,
    /// The time a request takes when nothing is exhausted.
    pub latency: Nanos,
}

/// When each of the two buckets has a token again.
#[derive(Clone, Debug)]
pub struct Quota {
    spec: QuotaSpec,
    requests_free: Nanos,
    bytes_free: Nanos,
}

impl Quota {
    /// A volume that was not used yet.
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
