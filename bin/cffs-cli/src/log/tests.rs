use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use super::*;

fn own_dir_with(variables: &[(&str, &str)]) -> Option<PathBuf> {
    own_dir(|name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| PathBuf::from(value))
    })
}

/// Regression: without HOME the log was `/tmp/cffs/cffs.log`, where any user could plant a symbolic
/// link.
#[test]
fn a_log_is_never_in_a_directory_that_others_can_write() {
    assert_eq!(own_dir_with(&[]), None);
    let state = own_dir_with(&[("XDG_STATE_HOME", "/state"), ("HOME", "/home/u")]);
    assert_eq!(state, Some(PathBuf::from("/state")));
    assert_eq!(own_dir_with(&[("HOME", "/home/u")]), Some(PathBuf::from("/home/u/.local/state")));
    let session = own_dir_with(&[("XDG_RUNTIME_DIR", "/run/user/7"), ("HOME", "")]);
    assert_eq!(session, Some(PathBuf::from("/run/user/7")));
    assert_eq!(own_dir_with(&[("XDG_STATE_HOME", "state")]), None);
}

#[test]
fn a_log_is_private_and_no_link_is_followed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let path = scratch.path().join("log");
    drop(open(&path).expect("made"));
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    let link = scratch.path().join("link");
    symlink(&path, &link).expect("linked");
    let error = open(&link).expect_err("it is a link").to_string();
    assert_eq!(error, "it is a symbolic link; name the file itself");
}

/// Collects logged messages.
#[derive(Clone, Default)]
struct Gathered(Arc<Mutex<Vec<u8>>>);

impl Write for Gathered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("whole").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(volume: &str, log: impl FnOnce()) -> String {
    let gathered = Gathered::default();
    let out = gathered.clone();
    let subscriber = tracing_subscriber::fmt()
        .event_format(Lines::new(PathBuf::from(volume), false))
        .with_writer(move || out.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, log);
    let bytes = gathered.0.lock().expect("whole").clone();
    String::from_utf8(bytes).expect("text")
}

/// Regression: all mounts of a host share a log, and lines did not name the mount.
#[test]
fn every_line_names_its_volume() {
    let text = logged("/srv/a\n b.cffs", || {
        tracing::info!("closed");
        tracing::error!(operation = "read", error = "checksum", "failed");
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], " INFO /srv/a\\n b.cffs: closed");
    assert!(lines[1].starts_with("ERROR /srv/a\\n b.cffs: failed "), "{text}");
    assert!(lines[1].contains("operation=\"read\""), "{text}");
    assert_eq!(lines.len(), 2);
}

/// Regression: an image whose name has a line end wrote lines of its own choice.
#[test]
fn a_name_does_not_begin_another_line() {
    let image = Path::new("i\nERROR other: forged \x1b[2J");
    let text = logged("/srv/tree", || tracing::info!(image = %image.display(), "took over"));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(r"i\nERROR other: forged \u{1b}[2J"), "{text}");
}

/// Regression: the system's log got each message with the severity *notice*, so that no filter found errors.
#[test]
fn the_system_log_gets_the_severity_of_a_message() {
    let (ours, theirs) = UnixDatagram::pair().expect("sockets");
    let subscriber = tracing_subscriber::fmt()
        .event_format(Lines::new(PathBuf::from("v"), false))
        .with_writer(SystemLog(ours))
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        tracing::error!("failed");
        tracing::warn!("doubtful");
        tracing::info!("closed");
    });
    let expected =
        [("<27>", "ERROR v: failed"), ("<28>", "WARN v: doubtful"), ("<29>", "v: closed")];
    for (priority, text) in expected {
        let mut message = [0; 256];
        let len = theirs.recv(&mut message).expect("sent");
        let message = String::from_utf8_lossy(&message[..len]).into_owned();
        assert!(message.starts_with(priority) && message.ends_with(text), "{message}");
    }
}

#[test]
fn a_repeated_message_does_not_fill_the_log() {
    let text = logged("v", || {
        for attempt in 0..1000 {
            tracing::error!(attempt, "failed");
        }
    });
    assert_eq!(text.lines().count(), 10, "{text}");
}
