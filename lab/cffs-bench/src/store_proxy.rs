//! A proxy in front of an object store: it counts requests, adds the delays of a distant store, and loses
//! answers.
//!
//! Requests and answers pass unchanged, including `Host`, which is signed. `GET /.counts` is answered by the
//! proxy itself, with [`Counts`] as JSON; no bucket has such a name.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{EXPECT, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, sleep_until};

pub const COUNTS_PATH: &str = "/.counts";

#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The delay of each request in addition to its transfer.
    pub delay: Duration,
    /// The bandwidth that all transfers of one direction share.
    pub bytes_per_second: u64,
    /// One of this many answers is lost at random, after the server has carried out the request;
    /// 0 for none.
    pub loses_one_in: u64,
    /// The seed of the random choice.
    pub seed: u64,
}

/// The counts of requests and bytes that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Objects or parts of objects put, and the requests that start and complete multipart uploads.
    pub puts: u64,
    /// Objects or ranges that were read.
    pub gets: u64,
    /// The longest chain of gets of which each began when the previous one was answered.
    pub gets_in_a_row: u64,
    /// Queries of an object's metadata.
    pub heads: u64,
    pub lists: u64,
    pub deletes: u64,
    /// Bytes of bodies to the store.
    pub bytes_up: u64,
    /// Bytes of bodies from the store.
    pub bytes_down: u64,
    pub lost: u64,
}

impl Counts {
    /// Counts a request by what a store charges for it.
    fn count(&mut self, method: &Method, uri: &Uri) {
        let query = uri.query().unwrap_or_default();
        // The path has a bucket and a key, or a bucket alone.
        let has_key = uri
            .path()
            .trim_start_matches('/')
            .split_once('/')
            .is_some_and(|(_, key)| !key.is_empty());
        match *method {
            Method::POST if query.split('&').any(|part| part.starts_with("delete")) => {
                self.deletes += 1
            }
            Method::PUT | Method::POST => self.puts += 1,
            Method::DELETE => self.deletes += 1,
            Method::HEAD => self.heads += 1,
            _ if has_key => self.gets += 1,
            _ => self.lists += 1,
        }
    }
}

struct Proxy {
    upstream: SocketAddr,
    line: Line,
    state: Mutex<State>,
}

struct State {
    counts: Counts,
    chance: u64,
    /// The time at which each direction is free.
    free_at: [Instant; 2],
}

#[derive(Clone, Copy)]
enum Direction {
    Up,
    Down,
}

type Upstream = SendRequest<Full<Bytes>>;

/// Passes on requests until the process ends.
///
/// # Errors
///
/// When the socket cannot be used.
pub fn serve(listener: TcpListener, upstream: SocketAddr, line: Line) -> Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let state =
            State { counts: Counts::default(), chance: line.seed, free_at: [Instant::now(); 2] };
        let proxy = Arc::new(Proxy { upstream, line, state: Mutex::new(state) });
        loop {
            let (client, _) = listener.accept().await.context("accepting a connection")?;
            tokio::spawn(Arc::clone(&proxy).serve_client(client));
        }
    })
}

impl Proxy {
    async fn serve_client(self: Arc<Self>, client: TcpStream) {
        // The requests of a connection follow each other, so one connection to the server suffices for them.
        let upstream: Arc<Mutex<Option<Upstream>>> = Arc::default();
        let service = service_fn(move |request| {
            let (proxy, upstream) = (Arc::clone(&self), Arc::clone(&upstream));
            async move { proxy.pass(request, &upstream).await }
        });
        // A connection ends early if the client closes it, or to lose an answer.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(client), service)
            .await;
    }

    /// The answer to a request; an error closes the connection without one.
    async fn pass(
        &self,
        request: Request<Incoming>,
        upstream: &Mutex<Option<Upstream>>,
    ) -> Result<Response<Full<Bytes>>> {
        if request.uri().path() == COUNTS_PATH {
            let counts = serde_json::to_vec(&self.state.lock().counts)?;
            return Ok(Response::new(Full::from(counts)));
        }
        let (mut head, body) = request.into_parts();
        let is_head = head.method == Method::HEAD;
        let row = self.count(&head.method, &head.uri);
        let body = body.collect().await?.to_bytes();
        self.transfer(Direction::Up, body.len()).await;
        sleep(self.line.delay).await;
        // The proxy has answered `Expect`, and passes on chunked bodies as a whole.
        head.headers.remove(EXPECT);
        head.headers.remove(TRANSFER_ENCODING);
        let taken = upstream.lock().take();
        let mut sender = self.ready(taken).await?;
        let answer = sender.send_request(Request::from_parts(head, Full::from(body))).await?;
        let (mut head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        *upstream.lock() = Some(sender);
        self.transfer(Direction::Down, body.len()).await;
        if let Some(row) = row {
            let longest = &mut self.state.lock().counts.gets_in_a_row;
            *longest = row.max(*longest);
        }
        if self.is_lost() {
            return Err(anyhow!("this answer is lost"));
        }
        if !is_head {
            head.headers.remove(TRANSFER_ENCODING);
        }
        Ok(Response::from_parts(head, Full::from(body)))
    }

    /// Counts a request; for a read, returns the length of the chain that ends with it.
    fn count(&self, method: &Method, uri: &Uri) -> Option<u64> {
        let counts = &mut self.state.lock().counts;
        let gets = counts.gets;
        counts.count(method, uri);
        (counts.gets > gets).then_some(counts.gets_in_a_row + 1)
    }

    /// The connection, or a new one if the server has closed it.
    async fn ready(&self, taken: Option<Upstream>) -> Result<Upstream> {
        if let Some(mut sender) = taken
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let stream = TcpStream::connect(self.upstream).await.context("connecting to the server")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// Waits until `bytes` more bytes have passed in this direction, after those of earlier callers.
    async fn transfer(&self, direction: Direction, bytes: usize) {
        let takes = Duration::from_secs_f64(bytes as f64 / self.line.bytes_per_second as f64);
        let done_at = {
            let mut state = self.state.lock();
            let (counts, index) = (&mut state.counts, direction as usize);
            match direction {
                Direction::Up => counts.bytes_up += bytes as u64,
                Direction::Down => counts.bytes_down += bytes as u64,
            }
            let done_at = state.free_at[index].max(Instant::now()) + takes;
            state.free_at[index] = done_at;
            done_at
        };
        sleep_until(done_at).await;
    }

    fn is_lost(&self) -> bool {
        let Some(one_in) = NonZeroU64::new(self.line.loses_one_in) else { return false };
        let mut state = self.state.lock();
        // Knuth's generator: the same answers are lost with the same seed, if requests come in one order.
        state.chance =
            state.chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let is_lost = (state.chance >> 33) % one_in == 0;
        state.counts.lost += u64::from(is_lost);
        is_lost
    }
}

#[cfg(test)]
mod tests;
