//! Connections, with limits of their number, duration, speed and size.

use std::io;
use std::net::TcpListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// The maximum number of connections; further ones are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// How long a client may take for the TLS handshake, and for the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a connection may last. The page reconnects.
const CONNECTION_TIME: Duration = Duration::from_secs(3600);
/// The longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The maximum number of header lines of a request.
const HEADERS_MAX: usize = 64;
/// The pause of accepting while no file descriptor is available.
const REST: Duration = Duration::from_millis(100);

/// Serves until a message arrives on `stopped`, or its sender is dropped.
pub(crate) async fn serve(
    listener: StdListener,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    mut stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let acceptor = tls.map(TlsAcceptor::from);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => return Ok(()),
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // The client has disconnected, or too many files are open: the next connection may
            // succeed.
            sleep(REST).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        tokio::spawn(async move {
            let _place = place;
            // Answers are small, and a client waits for each.
            let _ = stream.set_nodelay(true);
            let answering = async move {
                match acceptor {
                    None => answer(stream, router).await,
                    Some(acceptor) => {
                        if let Ok(Ok(stream)) = timeout(HEAD_TIME, acceptor.accept(stream)).await {
                            answer(stream, router).await;
                        }
                    }
                }
            };
            let _ = timeout(CONNECTION_TIME, answering).await;
        });
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // An error of one client affects no other.
    let _ = connection.await;
}

/// The certificate and the key in a file; on failure the reason.
pub(crate) fn tls(path: &Path) -> Result<Arc<ServerConfig>, String> {
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| error.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    config.map(Arc::new).map_err(|error| error.to_string())
}
