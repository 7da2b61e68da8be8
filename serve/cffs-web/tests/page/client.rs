//! A minimal HTTP client, which can also send invalid requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// The server's address.
#[derive(Clone, Copy)]
pub struct Client(pub SocketAddr);

/// A complete answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Client {
    pub fn connect(self) -> TcpStream {
        let stream = TcpStream::connect(self.0).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        stream
    }

    /// Sends bytes, and reads until the server closes the connection.
    pub fn raw(self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        // The server may refuse before it has read everything.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    /// Sends a request with these headers in addition to the usual ones.
    pub fn request(self, line: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        self.raw(
            format!(
                "{line} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {length}\r\n\
                 {headers}\r\n{body}",
                self.0
            )
            .as_bytes(),
        )
    }

    pub fn get(self, path: &str, token: &str) -> Answer {
        let line = format!("GET {path}");
        self.request(&line, &format!("Authorization: Bearer {token}\r\n"), "")
    }

    pub fn post(self, action: &str, token: &str, body: &str) -> Answer {
        let headers =
            format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        self.request(&format!("POST /api/v1/actions/{action}"), &headers, body)
    }
}
