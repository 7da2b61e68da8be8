//! Requests of other sites, requests without a token, and requests that are not HTTP.

use std::io::{Read, Write};
use std::time::Duration;

use cffs_web::{BadTokens, BindError, Forms, Options, RecentLog, Server, Target, Tokens};

use super::{LOOK, RUN, Scene};

const PATHS: [&str; 7] = [
    "/api/v1/status",
    "/api/v1/history",
    "/api/v1/events",
    "/api/v1/log",
    "/api/v1/role",
    "/api/v1/layout?path=/",
    "/metrics",
];

#[test]
fn nothing_is_shown_without_a_token_and_nothing_run_with_the_viewing_token() {
    let scene = Scene::new();
    for path in PATHS {
        let anonymous = scene.client.request(&format!("GET {path}"), "", "");
        assert_eq!(anonymous.status, 401, "{path}");
        assert!(anonymous.head.contains("www-authenticate: bearer"), "{anonymous:?}");
        for token in ["", "x", &LOOK[1..], "a-token-that-lets-walk"] {
            assert_eq!(scene.client.get(path, token).status, 401, "{path} with '{token}'");
        }
    }
    for path in ["/api/v1/layout?path=/", "/api/v1/layout.svg?path=/"] {
        assert_eq!(scene.client.get(path, LOOK).status, 403, "{path}");
    }
    let label = "{\"label\":\"stolen\"}";
    assert_eq!(scene.client.post("label", LOOK, label).status, 403);
    assert_eq!(scene.client.post("label", "", label).status, 401);
    assert_eq!(scene.volume.writer().superblock.get().label, b"photos");
}

#[test]
fn requests_of_other_sites_are_refused() {
    let scene = Scene::new();
    let authorized = format!("Authorization: Bearer {RUN}\r\n");
    let host = scene.client.0;
    for (headers, status) in [
        ("Origin: http://evil.example\r\n".to_owned(), 403),
        ("Origin: null\r\n".to_owned(), 403),
        (format!("Origin: https://{host}\r\n"), 403),
        ("Sec-Fetch-Site: cross-site\r\n".to_owned(), 403),
        ("Sec-Fetch-Site: same-site\r\n".to_owned(), 403),
        (format!("Origin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n"), 200),
    ] {
        let answer =
            scene.client.request("GET /api/v1/status", &(authorized.clone() + &headers), "");
        assert_eq!(answer.status, status, "{headers}");
    }
    for (host, status) in [
        ("Host: evil.example\r\n", 421),
        ("Host: 127.0.0.1.evil.example\r\n", 421),
        ("Host: localhost:80\r\nHost: evil.example\r\n", 421),
        ("", 421),
        ("Host: localhost:8080\r\n", 200),
        ("Host: Volume.Example\r\n", 200),
        ("Host: [::1]:8080\r\n", 200),
    ] {
        let request = format!("GET / HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        assert_eq!(scene.client.raw(request.as_bytes()).status, status, "{host}");
    }
    // The content types that a form of another site can send.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let headers = format!("{authorized}Content-Type: {kind}\r\n");
        let answer =
            scene.client.request("POST /api/v1/actions/label", &headers, "{\"label\":\"x\"}");
        assert_eq!(answer.status, 415, "{kind}");
    }
    assert_eq!(scene.volume.writer().superblock.get().label, b"photos");
}

#[test]
fn every_answer_forbids_what_the_page_does_not_need() {
    let scene = Scene::new();
    for line in ["GET /", "GET /page.js", "GET /api/v1/status", "GET /nothing", "PUT /", "TRACE /"]
    {
        let answer = scene.client.request(line, "", "");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(answer.head.contains(header), "{line}: {header}: {answer:?}");
        }
        assert!(!answer.head.contains("set-cookie") && !answer.head.contains("access-control"));
    }
    let page = scene.client.request("GET /", "", "").body;
    assert!(
        !page.contains("<script>") && !page.contains(" style=") && !page.contains("http"),
        "{page}"
    );
}

#[test]
fn bodies_paths_and_heads_have_limits() {
    let scene = Scene::new();
    let long = format!("{{\"label\":\"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(scene.client.post("label", RUN, &long).status, 413);
    for (action, body, status) in [
        ("label", "{}", 422),
        ("label", "{\"label\":7}", 422),
        ("label", "{\"label\":\"x\",\"shell\":\"reboot\"}", 422),
        ("label", "[[[[", 422),
        ("scrub", "{\"bytes_per_second\":-1}", 422),
        ("regroup", "{\"path\":\"/../etc\"}", 422),
        ("regroup", "{\"path\":\"/none\"}", 404),
        ("reboot", "{}", 404),
    ] {
        let answer = scene.client.post(action, RUN, body);
        assert_eq!(answer.status, status, "{action} {body}: {answer:?}");
    }
    let long = format!("{{\"label\":\"{}\"}}", "x".repeat(65));
    assert!((400..500).contains(&scene.client.post("label", RUN, &long).status));
    for path in ["/../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/page.js/.."] {
        assert_eq!(scene.client.get(path, RUN).status, 404, "{path}");
    }
    let paths = format!("/api/v1/layout?path=/{}", "x/".repeat(4000));
    assert!((400..500).contains(&scene.client.get(&paths, RUN).status));
    let many: String = (0..200).map(|number| format!("X-{number}: x\r\n")).collect();
    assert!((400..500).contains(&scene.client.request("GET /", &many, "").status));
    for noise in [&b"\0\0\0\0\r\n\r\n"[..], b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n"] {
        assert!(matches!(scene.client.raw(noise).status, 0 | 400..500));
    }
    assert_eq!(scene.client.get("/api/v1/status", LOOK).status, 200, "it goes on");
}

#[test]
fn silent_connections_are_few_and_do_not_block_others_for_long() {
    let scene = Scene::new();
    let silent: Vec<_> = (0..300).map(|_| scene.client.connect()).collect();
    // Connections above the limit are closed at once; the others stay open.
    let closed = |stream: &std::net::TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(5))).expect("set");
        matches!((&*stream).read(&mut [0]), Ok(0))
    };
    let mut closed_count = 0;
    for _ in 0..50 {
        closed_count = silent.iter().filter(|stream| closed(stream)).count();
        if closed_count >= 44 {
            break;
        }
    }
    assert_eq!(closed_count, 44, "of 300 connections 256 are kept");
    drop(silent);
    let mut again = scene.client.connect();
    let _ = again.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
}

#[test]
fn other_machines_are_served_with_a_certificate_only() {
    let options = |certificate| Options {
        address: "0.0.0.0:0".parse().expect("an address"),
        names: Vec::new(),
        certificate,
        tokens: Tokens::new().expect("random"),
        log: RecentLog::default(),
        target: Target { directory: None, image: "tree.cffs".into() },
        snapshots: None,
        forms: Forms { picture: |_, _| String::new(), metrics: |_, _| String::new() },
    };
    assert!(matches!(Server::bind(options(None)), Err(BindError::Open(_))));
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("certificate");
    std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .expect("written");
    let Err(error) = Server::bind(options(Some(file.clone()))) else {
        panic!("no key, and it listens")
    };
    assert!(error.to_string().starts_with(&file.display().to_string()), "{error}");
}

#[test]
fn a_token_file_must_be_private_to_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("tokens");
    let made = Tokens::from_file(&file).expect("made");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    assert!(made.run.len() >= 32 && made.run != made.look);
    assert_eq!(Tokens::from_file(&file).expect("read").run, made.run);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).expect("set");
    assert!(matches!(Tokens::from_file(&file), Err(BadTokens::Readable(_))));
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
    for text in ["", "run short\nlook alsoshort\n", "run 0123456789abcdef\nlook 0123456789abcdef\n"]
    {
        std::fs::write(&file, text).expect("written");
        assert!(matches!(Tokens::from_file(&file), Err(BadTokens::Malformed(_))), "{text}");
    }
}
