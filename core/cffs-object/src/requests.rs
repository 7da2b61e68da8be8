//! Counts requests by what a store charges for.
//!
//! Those of S3 are counted at the HTTP layer, below the client's own retries and page by page, since each is
//! charged for. Those of other stores are counted where this crate makes them.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use parking_lot::Mutex;

use crate::error::Error;

/// How many requests were made, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Objects created or overwritten.
    pub puts: u64,
    /// Objects or ranges read.
    pub gets: u64,
    /// Queries of an object's size.
    pub heads: u64,
    /// Listings: with HTTP, each page of up to 1,000 objects.
    pub lists: u64,
    /// Delete requests, up to 1,000 objects each.
    pub deletes: u64,
    /// Bytes of objects that were sent.
    pub sent_bytes: u64,
    /// Bytes of objects received.
    pub received_bytes: u64,
    /// Chunks found in the cache on a local disk.
    pub cache_hits: u64,
    /// Chunks not found there.
    pub cache_misses: u64,
    /// Bytes of the chunks found.
    pub cache_read_bytes: u64,
    /// Bytes added to the cache.
    pub cache_written_bytes: u64,
}

impl Requests {
    /// Each figure with its name.
    pub fn by_name(&self) -> [(&'static str, u64); 11] {
        [
            ("puts", self.puts),
            ("gets", self.gets),
            ("heads", self.heads),
            ("lists", self.lists),
            ("deletes", self.deletes),
            ("sent_bytes", self.sent_bytes),
            ("received_bytes", self.received_bytes),
            ("cache_hits", self.cache_hits),
            ("cache_misses", self.cache_misses),
            ("cache_read_bytes", self.cache_read_bytes),
            ("cache_written_bytes", self.cache_written_bytes),
        ]
    }
}

/// The kinds of requests that stores charge for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Put,
    Get,
    Head,
    List,
    Delete,
}

/// An outage of a store, which ends when a retried request succeeds.
#[derive(Clone, Debug)]
pub struct Outage {
    /// When the first of these requests failed.
    pub since: Instant,
    /// The last failure.
    pub why: String,
    /// Whether it was logged as an error.
    is_long: bool,
}

/// An outage of this length is logged as an error, since changes wait for its end.
const LONG: Duration = Duration::from_secs(5);

/// Counts the requests to a store.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    puts: AtomicU64,
    gets: AtomicU64,
    heads: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
    cache_read_bytes: AtomicU64,
    cache_written_bytes: AtomicU64,
    outage: Mutex<Option<Outage>>,
}

impl Counter {
    /// The outage of the store, if a request is being retried.
    pub fn outage(&self) -> Option<Outage> {
        self.0.outage.lock().clone()
    }

    /// Records and logs that a request failed, and will be retried.
    pub(crate) fn retries(&self, object: &str, error: &Error) {
        tracing::warn!(object, %error, "asking the store again");
        let mut outage = self.0.outage.lock();
        let begun = || Outage { since: Instant::now(), why: String::new(), is_long: false };
        let outage = outage.get_or_insert_with(begun);
        outage.why = error.to_string();
        let length = outage.since.elapsed();
        if length >= LONG && !mem::replace(&mut outage.is_long, true) {
            let seconds = length.as_secs();
            tracing::error!(seconds, %error, "requests to the store fail; changes wait until they succeed");
        }
    }

    /// Records and logs that a retried request succeeded.
    pub(crate) fn works_again(&self) {
        if let Some(outage) = self.0.outage.lock().take() {
            tracing::info!(seconds = outage.since.elapsed().as_secs(), "the store works again");
        }
    }

    /// Records that a request is retried no more, although it failed.
    pub(crate) fn retries_no_more(&self) {
        *self.0.outage.lock() = None;
    }

    /// The requests up to now.
    pub fn requests(&self) -> Requests {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Requests {
            puts: load(&self.0.puts),
            gets: load(&self.0.gets),
            heads: load(&self.0.heads),
            lists: load(&self.0.lists),
            deletes: load(&self.0.deletes),
            sent_bytes: load(&self.0.sent_bytes),
            received_bytes: load(&self.0.received_bytes),
            cache_hits: load(&self.0.cache_hits),
            cache_misses: load(&self.0.cache_misses),
            cache_read_bytes: load(&self.0.cache_read_bytes),
            cache_written_bytes: load(&self.0.cache_written_bytes),
        }
    }

    /// Counts requests of a kind.
    pub(crate) fn count(&self, kind: Kind, requests: u64) {
        let counter = match kind {
            Kind::Put => &self.0.puts,
            Kind::Get => &self.0.gets,
            Kind::Head => &self.0.heads,
            Kind::List => &self.0.lists,
            Kind::Delete => &self.0.deletes,
        };
        counter.fetch_add(requests, Ordering::Relaxed);
    }

    /// Counts the bytes that a request sends.
    pub(crate) fn sent(&self, bytes: u64) {
        self.0.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a hit of the cache on a local disk, with its bytes, or a miss.
    pub(crate) fn cached(&self, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => {
                self.0.cache_hits.fetch_add(1, Ordering::Relaxed);
                self.0.cache_read_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            None => {
                self.0.cache_misses.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Counts bytes added to that cache.
    pub(crate) fn added(&self, bytes: u64) {
        self.0.cache_written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts the bytes of an answer.
    pub(crate) fn received(&self, bytes: u64) {
        self.0.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Connects a client whose requests are counted.
#[derive(Debug)]
pub struct CountingConnector(pub Counter);

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(CountingService { client, counter: self.0.clone() }))
    }
}

#[derive(Debug)]
struct CountingService {
    client: HttpClient,
    counter: Counter,
}

#[async_trait]
impl HttpService for CountingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri();
        let is_counted = !is_for_credentials(uri.host().unwrap_or_default());
        let kind = kind_of(request.method().as_str(), uri.query().unwrap_or_default());
        if is_counted {
            self.counter.count(kind, 1);
            if kind == Kind::Put {
                self.counter.sent(request.body().content_length() as u64);
            }
        }
        let answer = self.client.execute(request).await?;
        if is_counted && kind == Kind::Get && answer.status().is_success() {
            let len = answer.headers().get("content-length").and_then(|len| len.to_str().ok());
            self.counter.received(len.and_then(|len| len.parse().ok()).unwrap_or(0));
        }
        Ok(answer)
    }
}

/// The kind under which this request is charged.
fn kind_of(method: &str, query: &str) -> Kind {
    let has = |name: &str| {
        query.split('&').any(|pair| pair.split_once('=').map_or(pair, |(key, _)| key) == name)
    };
    match method {
        "GET" if has("list-type") || query.split('&').any(|pair| pair == "comp=list") => Kind::List,
        "GET" => Kind::Get,
        "HEAD" => Kind::Head,
        "DELETE" => Kind::Delete,
        "POST" if has("delete") || query.split('&').any(|pair| pair == "comp=batch") => {
            Kind::Delete
        }
        _ => Kind::Put,
    }
}

/// Whether a host provides credentials, of a cloud machine or container, or by the token service: the client
/// asks it through the same connector, free of charge.
fn is_for_credentials(host: &str) -> bool {
    let known = ["metadata.google.internal", "oauth2.googleapis.com", "login.microsoftonline.com"];
    host.starts_with("169.254.") || host.starts_with("sts.") || known.contains(&host)
}

#[cfg(test)]
mod tests;
