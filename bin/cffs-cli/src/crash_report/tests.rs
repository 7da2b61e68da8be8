use std::io::Write;
use std::sync::{Arc, Mutex};

use super::*;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic while locked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic while locked")).into_owned()
    }
}

/// The messages that `work` logs.
fn logged(work: impl FnOnce()) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    tracing::subscriber::with_default(subscriber.finish(), work);
    log.text()
}

#[test]
fn a_panic_is_logged_with_its_message_and_place() {
    let before = panic::take_hook();
    log_panics();
    let text = logged(|| {
        let number = std::hint::black_box(7);
        let ended = panic::catch_unwind(|| panic!("the {number}th thing is missing"));
        assert!(ended.is_err());
    });
    panic::set_hook(before);
    assert!(text.contains("panicked: the 7th thing is missing"), "{text}");
    assert!(text.contains("crash_report/tests.rs:"), "{text}");
}

#[test]
fn the_last_output_of_a_server_is_logged_line_by_line() {
    let words = "memory allocation of 4096 bytes failed\n\nsecond\n";
    let text = logged(|| log_output(words.as_bytes()));
    assert!(text.contains("the server says: memory allocation of 4096 bytes failed\n"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn an_end_by_a_signal_is_logged_and_an_exit_is_not() {
    let image = Path::new("/srv/tree.cffs");
    let killed = logged(|| log_end(image, 77, ExitStatus::from_raw(SIGKILL)));
    assert!(killed.contains("ended by SIGKILL; a user killed it"), "{killed}");
    assert!(killed.contains("/srv/tree.cffs") && killed.contains("pid=77"), "{killed}");
    let failed = logged(|| log_end(image, 77, ExitStatus::from_raw(1 << 8)));
    assert_eq!(failed, "");
}
