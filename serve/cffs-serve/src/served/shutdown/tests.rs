use std::time::Duration;

use super::{Heard, ShutdownReport, ShutdownReports, listen};

#[test]
fn the_attribute_carries_a_number() {
    assert_eq!(ShutdownReports::number(b"system.cffs.shutdown.77"), Some(77));
    for name in ["system.cffs.shutdown.", "system.cffs.shutdown.-1", "system.cffs.info", "user.7"] {
        assert_eq!(ShutdownReports::number(name.as_bytes()), None, "{name}");
    }
}

#[test]
fn messages_arrive_in_order_and_so_does_the_end() {
    let (listener, number) = listen().expect("a free number");
    let reports = ShutdownReports::default();
    reports.connect(number).expect("connected");
    let (stream, _) = listener.accept().expect("the server");
    let mut listener = super::ShutdownListener {
        stream: std::io::BufReader::new(stream),
        line: Vec::new(),
        process: None,
    };
    let soon = Duration::from_millis(10);
    assert_eq!(listener.listen(soon), Heard::Report(ShutdownReport::Serving));
    assert_eq!(listener.listen(soon), Heard::Nothing);
    reports.send(&ShutdownReport::Closing);
    reports.send(&ShutdownReport::Failed(String::from("a\nb")));
    assert_eq!(listener.listen(soon), Heard::Report(ShutdownReport::Closing));
    assert_eq!(listener.listen(soon), Heard::Report(ShutdownReport::Failed(String::from("a\nb"))));
    drop(reports);
    assert_eq!(listener.listen(soon), Heard::End);
}

#[test]
fn a_listener_that_has_ended_is_dropped() {
    let (listener, number) = listen().expect("a free number");
    let reports = ShutdownReports::default();
    for _ in 0..20 {
        reports.connect(number).expect("connected");
        let _ = listener.accept().expect("the server");
    }
    assert!(reports.lock().len() <= super::LISTENERS_MAX);
    reports.send(&ShutdownReport::Closing);
    assert!(reports.lock().is_empty());
}
