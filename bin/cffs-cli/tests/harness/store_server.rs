//! An object store server on loopback: versitygw, or MinIO with `CFFS_STORE_SERVER=minio`.

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{CFFS, Scratch, succeed, wait_for};

pub const USER: &str = "tests";
pub const SECRET: &str = "only for tests";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Versitygw,
    Minio,
}

/// A server with a directory for its buckets; it is stopped at the end of the test.
pub struct StoreServer {
    kind: Kind,
    server: RefCell<Child>,
    command: RefCell<Command>,
    pub address: String,
    pub endpoint: String,
    /// Keys that replace the user's, if any.
    keys: Vec<(&'static str, String)>,
}

impl StoreServer {
    /// A server with a bucket `bucket` in a directory `store`.
    pub fn start(scratch: &Scratch) -> Option<StoreServer> {
        StoreServer::start_at(&scratch.path().join("store"))
    }

    /// The same in this directory; without versitygw, prints a line and returns `None`.
    pub fn start_at(store: &Path) -> Option<StoreServer> {
        StoreServer::start_with(store, &[])
    }

    /// A server that keeps connections open between requests, as clouds and MinIO do.
    pub fn start_with_kept_connections(scratch: &Scratch) -> Option<StoreServer> {
        StoreServer::start_with(&scratch.path().join("store"), &["--keep-alive"])
    }

    /// A server with keys that may only read.
    pub fn start_to_read(store: &Path) -> Option<StoreServer> {
        if asked_for() == Kind::Versitygw {
            return StoreServer::start_with(store, &["--readonly"]);
        }
        let mut server = StoreServer::start_with(store, &[])?;
        server.keys = server.keys_that_only_read();
        Some(server)
    }

    fn start_with(store: &Path, options: &[&str]) -> Option<StoreServer> {
        let kind = asked_for();
        fs::create_dir_all(store.join("bucket")).expect("made");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = port.expect("a free port").to_string();
        let mut command = match kind {
            Kind::Versitygw => {
                let mut command = Command::new(program("versitygw"));
                command.args(["--access", USER, "--secret", SECRET, "--port", &address]);
                command.args(options).arg("posix");
                command
            }
            Kind::Minio => {
                let mut command = Command::new(program("minio"));
                command.args(["server", "--quiet", "--address", &address]);
                // Otherwise it would search other places for certificates, and request them from outside.
                command.arg("--certs-dir").arg(store.with_extension("certificates"));
                command.envs([("MINIO_BROWSER", "off"), ("MINIO_UPDATE", "off")]);
                command.envs([("MINIO_ROOT_USER", USER), ("MINIO_ROOT_PASSWORD", SECRET)]);
                command
            }
        };
        command.arg(store).stdout(Stdio::null()).stderr(Stdio::null());
        let server = match (command.spawn(), kind) {
            (Ok(server), _) => server,
            (Err(error), Kind::Minio) => panic!("there is no MinIO, make test-minio: {error}"),
            (Err(_), Kind::Versitygw) => {
                eprintln!(
                    "not run: there is no versitygw; scripts/setup.sh installs it where Go is"
                );
                return None;
            }
        };
        let (server, command) = (RefCell::new(server), RefCell::new(command));
        let endpoint = format!("http://{address}");
        let server = StoreServer { kind, server, command, address, endpoint, keys: Vec::new() };
        server.wait();
        Some(server)
    }

    fn wait(&self) {
        wait_for(|| match self.kind {
            Kind::Versitygw => TcpStream::connect(&self.address).is_ok(),
            // It listens before it is ready.
            Kind::Minio => {
                let asked = "GET /minio/health/cluster HTTP/1.0\r\nHost: tests\r\n\r\n";
                let mut answer = String::new();
                let asking = TcpStream::connect(&self.address).and_then(|mut connection| {
                    connection.write_all(asked.as_bytes())?;
                    connection.read_to_string(&mut answer)
                });
                asking.is_ok() && answer.contains(" 200 OK")
            }
        });
    }

    /// Keys of a session with a restricted policy, requested by Amazon's STS protocol.
    fn keys_that_only_read(&self) -> Vec<(&'static str, String)> {
        let policy = r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Allow",
            "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": ["arn:aws:s3:::*"]}]}"#;
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--aws-sigv4", "aws:amz:us-east-1:sts"]);
        curl.args(["--user", &format!("{USER}:{SECRET}"), "--data", "Action=AssumeRole"]);
        curl.args([
            "--data",
            "Version=2011-06-15",
            "--data-urlencode",
            &format!("Policy={policy}"),
        ]);
        let answer = succeed(curl.arg(&self.endpoint));
        let part = |tag: &str| {
            let (_, rest) = answer.split_once(&format!("<{tag}>")).expect("a session");
            rest.split_once(&format!("</{tag}>")).expect("whole").0.to_owned()
        };
        vec![
            ("AWS_ACCESS_KEY_ID", part("AccessKeyId")),
            ("AWS_SECRET_ACCESS_KEY", part("SecretAccessKey")),
            ("AWS_SESSION_TOKEN", part("SessionToken")),
        ]
    }

    pub fn stop(&self) {
        let _ = self.server.borrow_mut().kill();
        let _ = self.server.borrow_mut().wait();
    }

    pub fn start_again(&self) {
        *self.server.borrow_mut() = self.command.borrow_mut().spawn().expect("it starts");
        self.wait();
    }

    /// Sends further requests through the proxy of `cffs-bench`, with these options; without that program,
    /// prints a line and returns `None`.
    pub fn put_behind_line(&mut self, options: &[&str]) -> Option<Line> {
        let mut command = Command::new(Path::new(CFFS).with_file_name("cffs-bench"));
        command.args(["store-proxy", &self.address]).args(options).stdout(Stdio::piped());
        let Ok(mut proxy) = command.spawn() else {
            eprintln!("not run: there is no cffs-bench; cargo build -p cffs-bench makes it");
            return None;
        };
        let printed = proxy.stdout.take().expect("a pipe");
        let mut line = Line { proxy, address: String::new() };
        BufReader::new(printed).read_line(&mut line.address).expect("its address");
        line.address.truncate(line.address.trim_end().len());
        self.endpoint = format!("http://{}", line.address);
        Some(line)
    }

    /// The program, with this server in its environment.
    pub fn cffs(&self, scratch: &Scratch, secret: &str, arguments: &[&str]) -> Command {
        let mut command = scratch.cffs([]);
        command
            .args(arguments)
            .env("AWS_ENDPOINT_URL", &self.endpoint)
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", USER)
            .env("AWS_SECRET_ACCESS_KEY", secret)
            .envs(self.keys.iter().cloned());
        command
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A proxy in front of a server; it is stopped at the end of the test.
pub struct Line {
    proxy: Child,
    pub address: String,
}

impl Drop for Line {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

fn asked_for() -> Kind {
    match std::env::var("CFFS_STORE_SERVER").as_deref() {
        Err(_) | Ok("versitygw") => Kind::Versitygw,
        Ok("minio") => Kind::Minio,
        Ok(other) => panic!("CFFS_STORE_SERVER={other}: there are versitygw and minio"),
    }
}

/// The path where `scripts/setup.sh` installs it, or else one from `PATH`.
fn program(name: &str) -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin");
    let installed = tools.join(name);
    if installed.exists() { installed } else { PathBuf::from(name) }
}
