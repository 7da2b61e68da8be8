use std::time::Duration;

use super::{Farewells, Heard, Word, listen};

#[test]
fn the_attribute_carries_a_number() {
    assert_eq!(Farewells::number(b"system.cffs.farewell.77"), Some(77));
    for name in ["system.cffs.farewell.", "system.cffs.farewell.-1", "system.cffs.info", "user.7"] {
        assert_eq!(Farewells::number(name.as_bytes()), None, "{name}");
    }
}

#[test]
fn what_is_said_is_heard_in_order_and_so_is_the_end() {
    let (listener, number) = listen().expect("a free number");
    let farewells = Farewells::default();
    farewells.connect(number).expect("connected");
    let (stream, _) = listener.accept().expect("the server");
    let mut farewell = super::Farewell {
        stream: std::io::BufReader::new(stream),
        line: Vec::new(),
        process: None,
    };
    let soon = Duration::from_millis(10);
    assert_eq!(farewell.listen(soon), Heard::Word(Word::Serving));
    assert_eq!(farewell.listen(soon), Heard::Nothing);
    farewells.say(&Word::Closing);
    farewells.say(&Word::Failed(String::from("a\nb")));
    assert_eq!(farewell.listen(soon), Heard::Word(Word::Closing));
    assert_eq!(farewell.listen(soon), Heard::Word(Word::Failed(String::from("a\nb"))));
    drop(farewells);
    assert_eq!(farewell.listen(soon), Heard::End);
}

#[test]
fn a_listener_that_is_gone_is_forgotten() {
    let (listener, number) = listen().expect("a free number");
    let farewells = Farewells::default();
    for _ in 0..20 {
        farewells.connect(number).expect("connected");
        let _ = listener.accept().expect("the server");
    }
    assert!(farewells.lock().len() <= super::LISTENERS_MAX);
    farewells.say(&Word::Closing);
    assert!(farewells.lock().is_empty());
}
