//! Volumes in the stores of Google and Azure: the program with a substitute server that implements the
//! required parts of their protocols.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::harness::{Scratch, can_mount, fail, succeed};

const DATE: &str = "Tue, 24 Nov 2026 00:00:00 GMT";

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// The cloud whose protocol is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cloud {
    Google,
    Azure,
}

struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let len = headers.get("content-length").map_or(0, |len| len.parse().expect("a number"));
        let mut body = vec![0; len];
        stream.read_exact(&mut body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        Some(Request { method, path: path.into(), query: query.into(), headers, body })
    }

    fn asked(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs.into_iter().find(|(key, _)| *key == name)?;
        Some(decoded(value))
    }
}

/// Decodes a text in which each `%` precedes a byte in hexadecimal digits.
fn decoded(text: &str) -> String {
    let (first, coded) = text.split_once('%').unwrap_or((text, ""));
    let mut out = first.as_bytes().to_vec();
    for part in coded.split('%').filter(|part| !part.is_empty()) {
        out.push(u8::from_str_radix(&part[..2], 16).expect("two digits"));
        out.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(out).expect("UTF-8")
}

impl Cloud {
    /// Runs a server for one bucket until the test ends; returns its address.
    fn serve(self, objects: &Objects) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound").to_string();
        let objects = Arc::clone(objects);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let objects = Arc::clone(&objects);
                thread::spawn(move || self.converse(&stream, &objects));
            }
        });
        format!("http://{address}")
    }

    fn converse(self, stream: &TcpStream, objects: &Objects) {
        let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
        let mut writer = stream;
        while let Some(request) = Request::read(&mut reader) {
            let (status, body, headers) = self.answer(&request, objects);
            let head = format!(
                "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nlast-modified: {DATE}\r\n\
                 etag: \"e\"\r\n{headers}\r\n",
                body.len()
            );
            if writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&body)).is_err() {
                return;
            }
        }
    }

    fn answer(self, request: &Request, objects: &Objects) -> (u16, Vec<u8>, String) {
        let mut objects = objects.lock().expect("not poisoned");
        let path = decoded(&request.path);
        let name = path.trim_start_matches("/bucket").trim_start_matches('/').to_owned();
        let is_authorized = request.headers.get("authorization").is_some_and(|said| match self {
            Cloud::Google => said == "Bearer secret-token",
            Cloud::Azure => said.starts_with("SharedKey me:"),
        });
        let nothing = String::new();
        if !is_authorized {
            return (401, Vec::new(), nothing);
        }
        match request.method.as_str() {
            "PUT" => {
                let (condition, is_new) = match self {
                    Cloud::Google => ("x-goog-if-generation-match", "0"),
                    Cloud::Azure => ("if-none-match", "*"),
                };
                let creates = request.headers.get(condition).is_some_and(|value| value == is_new);
                if creates && objects.contains_key(&name) {
                    return (if self == Cloud::Azure { 409 } else { 412 }, Vec::new(), nothing);
                }
                objects.insert(name, request.body.clone());
                (if self == Cloud::Azure { 201 } else { 200 }, Vec::new(), nothing)
            }
            "DELETE" => match objects.remove(&name) {
                Some(_) => (if self == Cloud::Azure { 202 } else { 204 }, Vec::new(), nothing),
                None => (404, Vec::new(), nothing),
            },
            "GET" if name.is_empty() => (200, self.list(request, &objects), nothing),
            "GET" => match objects.get(&name) {
                Some(bytes) => part(bytes, request.headers.get("range")),
                None => (404, Vec::new(), nothing),
            },
            "POST" if request.asked("comp").as_deref() == Some("batch") => {
                delete_all(&request.body, &mut objects)
            }
            _ => (501, Vec::new(), nothing),
        }
    }

    fn list(self, request: &Request, objects: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
        let prefix = request.asked("prefix").unwrap_or_default();
        // A server of Azure may ignore the start of a listing.
        let after = request.asked("start-after").filter(|_| self == Cloud::Google);
        let listed = objects.iter().filter(|(name, _)| {
            name.starts_with(&prefix) && after.as_ref().is_none_or(|after| *name > after)
        });
        let shown = |(name, bytes): (&String, &Vec<u8>)| match self {
            Cloud::Google => format!(
                "<Contents><Key>{name}</Key><Size>{}</Size>\
                 <LastModified>2026-11-24T00:00:00Z</LastModified></Contents>",
                bytes.len()
            ),
            Cloud::Azure => format!(
                "<Blob><Name>{name}</Name><Properties><Last-Modified>{DATE}</Last-Modified>\
                 <Content-Length>{}</Content-Length><Content-Type>x</Content-Type><Etag>e</Etag>\
                 </Properties></Blob>",
                bytes.len()
            ),
        };
        let all: String = listed.map(shown).collect();
        match self {
            Cloud::Google => format!("<ListBucketResult>{all}</ListBucketResult>"),
            Cloud::Azure => format!(
                "<EnumerationResults><Blobs>{all}</Blobs><NextMarker/></EnumerationResults>"
            ),
        }
        .into_bytes()
    }
}

/// Deletes the objects named by the parts of a request, and answers each part.
fn delete_all(body: &[u8], objects: &mut BTreeMap<String, Vec<u8>>) -> (u16, Vec<u8>, String) {
    let text = String::from_utf8_lossy(body);
    let mut answer = String::new();
    let named = text.lines().filter_map(|line| line.strip_prefix("DELETE /bucket/"));
    for (number, line) in named.enumerate() {
        let name = decoded(line.split(' ').next().expect("a path"));
        let status = if objects.remove(&name).is_some() { 202 } else { 404 };
        answer.push_str(&format!(
            "--batch\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n\
             HTTP/1.1 {status} x\r\n\r\n\r\n"
        ));
    }
    answer.push_str("--batch--\r\n");
    let header = String::from("content-type: multipart/mixed; boundary=batch\r\n");
    (202, answer.into_bytes(), header)
}

fn part(bytes: &[u8], range: Option<&String>) -> (u16, Vec<u8>, String) {
    let Some(range) = range.and_then(|range| range.strip_prefix("bytes=")) else {
        return (200, bytes.to_vec(), String::new());
    };
    let (start, end) = range.split_once('-').expect("two numbers");
    let start: usize = start.parse().expect("a number");
    let end = end.parse::<usize>().expect("a number").min(bytes.len().saturating_sub(1));
    if start >= bytes.len() {
        return (416, Vec::new(), String::new());
    }
    let header = format!("content-range: bytes {start}-{end}/{}\r\n", bytes.len());
    (206, bytes[start..=end].to_vec(), header)
}

/// The life of a volume, and the messages for a wrong credential and a missing volume.
fn use_a_volume(cloud: Cloud, url: &str, key: [(&str, &str); 2]) {
    let scratch = Scratch::new();
    let objects = Objects::default();
    let endpoint = cloud.serve(&objects);
    let run_as = |key: [(&str, &str); 2], arguments: &[&str]| -> Command {
        let mut command = scratch.cffs([]);
        command.args(arguments).envs(key);
        match cloud {
            Cloud::Google => command.env("GOOGLE_BASE_URL", &endpoint),
            Cloud::Azure => {
                command.env("AZURE_STORAGE_ENDPOINT", &endpoint).env("AZURE_ALLOW_HTTP", "true")
            }
        };
        command
    };
    let run = |arguments: &[&str]| run_as(key, arguments);
    let missing = fail(1, &mut run(&["ls", url]));
    assert!(missing.contains("no volume at"), "{missing}");
    let tree = scratch.path().join("tree");
    std::fs::create_dir_all(tree.join("d")).expect("made");
    std::fs::write(tree.join("d/small"), b"contents").expect("written");
    std::fs::write(tree.join("large"), vec![3; 12 << 20]).expect("written");
    let from = tree.to_str().expect("UTF-8");
    succeed(&mut run(&["mkfs", "--size", "1T", url]));
    let again = fail(1, &mut run(&["mkfs", "--size", "1T", url]));
    assert!(again.contains("already has a volume"), "{again}");
    succeed(&mut run(&["import", "-q", url, from]));
    assert_eq!(succeed(&mut run(&["cat", url, "/d/small"])), "contents");
    let version = format!("{url}@first");
    succeed(&mut run(&["snapshot", "create", &version]));
    std::fs::write(tree.join("large"), vec![4; 12 << 20]).expect("written");
    succeed(&mut run(&["publish", "-q", from, &format!("{url}@second")]));
    succeed(&mut run(&["snapshot", "rm", &version]));
    let before = objects.lock().expect("not poisoned").len();
    succeed(&mut run(&["trim", "-q", url]));
    assert!(objects.lock().expect("not poisoned").len() < before, "nothing was deleted");
    succeed(&mut run(&["fsck", "-n", "-f", "--contents", url]));
    assert!(succeed(&mut run(&["snapshot", "ls", url])).ends_with("  second\n"));

    if can_mount() {
        let (log, at) = (scratch.log_option(), scratch.mountpoint());
        succeed(&mut run(&["mount", "-o", &log, url, at.to_str().expect("UTF-8")]));
        let info = succeed(&mut run(&["info", "--json", url]));
        assert!(info.contains("\"server\""), "{info}");
        // Another server's bucket with the same name.
        let other = cloud.serve(&Objects::default());
        let mut elsewhere = run(&["info", url]);
        let missing = match cloud {
            Cloud::Google => elsewhere.env("GOOGLE_BASE_URL", &other),
            Cloud::Azure => elsewhere.env("AZURE_STORAGE_ENDPOINT", &other),
        };
        let missing = fail(1, missing);
        assert!(missing.contains("no volume at"), "{missing}");
        succeed(&mut run(&["umount", url]));
    }

    let wrong = [key[0], (key[1].0, "d3Jvbmc=")];
    if cloud == Cloud::Google {
        let refused = fail(1, &mut run_as(wrong, &["ls", url]));
        assert!(refused.contains("GOOGLE_APPLICATION_CREDENTIALS"), "{refused}");
        assert!(!refused.contains("d3Jvbmc="), "{refused}");
    } else {
        let mut without = run(&["ls", url]);
        let said = fail(1, without.env_remove("AZURE_STORAGE_ACCOUNT"));
        assert!(said.contains("Account must be specified"), "{said}");
    }
}

#[test]
fn volumes_in_other_clouds() {
    let token = [("GOOGLE_ALLOW_HTTP", "true"), ("GOOGLE_BEARER_TOKEN", "secret-token")];
    use_a_volume(Cloud::Google, "gs://bucket/tree", token);
    let key = [("AZURE_STORAGE_ACCOUNT", "me"), ("AZURE_STORAGE_KEY", "c2VjcmV0")];
    use_a_volume(Cloud::Azure, "az://bucket/tree", key);
}
