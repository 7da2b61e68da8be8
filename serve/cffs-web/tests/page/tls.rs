//! The page with a certificate.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::Client;
use super::{LOOK, Scene};

/// Makes a self-signed certificate, in one file with its key; false without openssl.
fn make_certificate(file: &Path) -> bool {
    let key = file.with_extension("key");
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=volume.example"])
        .args(["-addext", "subjectAltName=DNS:volume.example"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(file)
        .stderr(Stdio::null())
        .status();
    let Ok(made) = made else {
        eprintln!("not run: openssl is not installed (package openssl)");
        return false;
    };
    assert!(made.success(), "openssl made none");
    let both = [std::fs::read(file).expect("made"), std::fs::read(key).expect("made")].concat();
    std::fs::write(file, both).expect("written");
    true
}

/// The server's answer to a client that uses this name, and trusts the certificate if one is given.
fn ask(client: Client, name: &str, trusted: Option<&Path>) -> io::Result<String> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = trusted {
        roots.add(CertificateDer::from_pem_file(file).expect("PEM")).expect("a certificate");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    let stream = TcpStream::connect(client.0)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut stream = StreamOwned::new(connection, stream);
    let request = format!(
        "GET /api/v1/status HTTP/1.1\r\nHost: volume.example:{}\r\nConnection: close\r\n\
         Origin: https://volume.example:{}\r\nAuthorization: Bearer {LOOK}\r\n\r\n",
        client.0.port(),
        client.0.port()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // The server closes the connection without a TLS close notification.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

#[test]
fn only_tls_clients_that_trust_the_certificate_get_an_answer() {
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("certificate.pem");
    if !make_certificate(&file) {
        return;
    }
    let scene = Scene::with_certificate(Some(file.clone()));
    let answer = ask(scene.client, "volume.example", Some(&file)).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("\"label\":\"photos\""), "{answer}");

    let stranger = ask(scene.client, "volume.example", None).expect_err("it is not trusted");
    assert!(stranger.to_string().contains("UnknownIssuer"), "{stranger}");
    let renamed = ask(scene.client, "other.example", Some(&file)).expect_err("another name");
    assert!(renamed.to_string().contains("not valid for name"), "{renamed}");
    let plain = scene.client.get("/api/v1/status", LOOK);
    assert!(plain.status == 0 && !plain.body.contains("photos"), "without TLS: {plain:?}");

    let again = ask(scene.client, "volume.example", Some(&file)).expect("answered");
    assert!(again.starts_with("HTTP/1.1 200"), "failed handshakes do not block others: {again}");
}
