//! Names of processes in a trace.

use super::recording::Names;

#[test]
fn names_precede_the_first_operation_of_a_process_and_lines_stay_complete() {
    let process = std::process::id();
    let event = format!(r#"{{"ph":"X","cat":"operation","name":"read","pid":{process},"tid":1}},"#);
    let request = r#"{"ph":"X","cat":"request","name":"read","pid":4194304,"tid":1},"#;
    let trace = format!("[\n{event}\n{request}\n{event}\n]\n");
    for len in [1, 7, trace.len()] {
        let mut names = Names::default();
        let pieces = trace.as_bytes().chunks(len);
        let out = pieces.flat_map(|piece| names.added_to(piece)).collect();
        let out = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = out.lines().collect();
        let [_, name, first, second, third, _] = lines[..] else { panic!("{out}") };
        assert!(name.contains("process_name") && name.contains(&process.to_string()), "{name}");
        assert_eq!([first, second, third], [&*event, request, &*event]);
    }
}
