//! Messages to sockets of both kinds.

use super::*;

fn received(socket: &UnixDatagram) -> Vec<u8> {
    let mut buf = [0; 64];
    let len = socket.recv(&mut buf).expect("a message");
    buf[..len].to_vec()
}

#[test]
fn a_message_arrives_by_path_and_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    send(path.as_os_str(), b"READY=1").expect("sent");
    assert_eq!(received(&socket), b"READY=1");

    let name = format!("cffs-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("an address");
    let socket = UnixDatagram::bind_addr(&address).expect("bound");
    send(OsStr::new(&format!("@{name}")), b"READY=1").expect("sent");
    assert_eq!(received(&socket), b"READY=1");
}

#[test]
fn a_missing_manager_is_an_error() {
    assert!(send(OsStr::new("/nonexistent/notify"), b"READY=1").is_err());
}
