//! The page of a volume, queried over HTTP by hand.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use super::Scratch;

/// A page for a command to serve, with tokens in a file.
pub struct Page {
    pub address: String,
    pub tokens: PathBuf,
}

impl Page {
    /// A page at a port that was free a moment ago.
    pub fn of(scratch: &Scratch) -> Page {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("bound").to_string();
        Page { address, tokens: scratch.path().join("tokens") }
    }

    /// The options of a command that serves the page.
    pub fn options(&self) -> [&str; 4] {
        ["--web", &self.address, "--web-token", self.tokens.to_str().expect("UTF-8")]
    }

    /// The status and the body of an answer, with the token for full control.
    pub fn ask(&self, line: &str, body: &str) -> (u16, String) {
        let tokens = fs::read_to_string(&self.tokens).expect("made");
        let token = tokens.lines().find_map(|line| line.strip_prefix("run ")).expect("a token");
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        let request = format!(
            "{line} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Authorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, body.to_owned())
    }
}
