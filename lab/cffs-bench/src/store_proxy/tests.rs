use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream as Connection;
use std::thread;

use super::*;

/// A server that answers each request with the request's body.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for client in listener.incoming() {
            thread::spawn(move || {
                let mut client = BufReader::new(client.expect("accepted"));
                while let Some((head, body)) = message(&mut client) {
                    let host =
                        head.lines().find(|line| line.starts_with("host:")).unwrap_or("none");
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nx-{host}\r\ncontent-length: {}\r\n\r\n",
                        body.len()
                    );
                    let client = client.get_mut();
                    client.write_all(answer.as_bytes()).expect("sent");
                    client.write_all(&body).expect("sent");
                }
            });
        }
    });
    address
}

/// The head of a message in lower case, and its body; `None` at the end of the connection.
fn message(from: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
    from.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn proxy(line: Line) -> SocketAddr {
    let (listener, upstream) = (TcpListener::bind("127.0.0.1:0").expect("a port"), echo());
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || serve(listener, upstream, line));
    address
}

const LINE: Line =
    Line { delay: Duration::ZERO, bytes_per_second: 1 << 40, loses_one_in: 0, seed: 1 };

struct Client(BufReader<Connection>);

impl Client {
    fn new(address: SocketAddr) -> Client {
        Client(BufReader::new(Connection::connect(address).expect("connected")))
    }

    fn ask(&mut self, what: &str, body: &[u8]) -> Option<(String, Vec<u8>)> {
        let head =
            format!("{what} HTTP/1.1\r\nHost: store:9\r\nContent-Length: {}\r\n\r\n", body.len());
        let connection = self.0.get_mut();
        connection.write_all(head.as_bytes()).ok()?;
        connection.write_all(body).ok()?;
        message(&mut self.0)
    }
}

fn counts(address: SocketAddr) -> serde_json::Value {
    let (_, body) = Client::new(address).ask("GET /.counts", &[]).expect("answered");
    serde_json::from_slice(&body).expect("JSON")
}

#[test]
fn requests_pass_unchanged_and_are_counted_by_kind() {
    let address = proxy(LINE);
    let mut client = Client::new(address);
    let data = vec![7; 100_000];
    let (head, body) = client.ask("PUT /bucket/key", &data).expect("answered");
    assert!(head.contains("x-host: store:9"), "{head}");
    assert_eq!(body, data);
    for what in [
        "GET /bucket/key",
        "GET /bucket/a/b?versionId=1",
        "GET /bucket?list-type=2",
        "GET /bucket/?list-type=2&prefix=a/b",
        "HEAD /bucket/key",
        "POST /bucket?delete",
        "DELETE /bucket/key",
        "POST /bucket/key?uploads",
    ] {
        client.ask(what, &[]).expect("answered");
    }
    let expected = "{\"puts\":2,\"gets\":2,\"gets_in_a_row\":2,\"heads\":1,\"lists\":2,\"deletes\":2,\
                    \"bytes_up\":100000,\"bytes_down\":100000,\"lost\":0}";
    assert_eq!(counts(address).to_string(), expected);
}

#[test]
fn an_answer_that_is_lost_closes_the_connection_after_the_effect() {
    let address = proxy(Line { loses_one_in: 4, ..LINE });
    let lost = (0..100).filter(|_| Client::new(address).ask("PUT /b/k", &[1]).is_none()).count();
    let counts = counts(address);
    assert_eq!((&counts["puts"], &counts["lost"]), (&100.into(), &lost.into()));
    assert!((10..45).contains(&lost), "{lost} of 100");
}

/// Checks only lower bounds of the times.
#[test]
fn the_proxy_adds_its_delay_and_bandwidth() {
    let delay = Duration::from_millis(20);
    let address = proxy(Line { delay, bytes_per_second: 1_000_000, ..LINE });
    let began = std::time::Instant::now();
    Client::new(address).ask("PUT /b/k", &vec![1; 50_000]).expect("answered");
    // 50 ms for the request, 50 ms for the answer.
    assert!(began.elapsed() >= Duration::from_millis(120), "{:?}", began.elapsed());
}
