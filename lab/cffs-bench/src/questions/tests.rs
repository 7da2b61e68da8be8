//! Small runs: every question yields its tables, and exact figures repeat.

use std::path::{Path, PathBuf};

use anyhow::Error;

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/questions.md");

fn plan() -> Plan {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    Plan {
        quick: true,
        seed: 1,
        trees: vec![crates.join("src")],
        configuration: crates.to_owned(),
        cffs: PathBuf::from("cffs"),
    }
}

/// The tables, unless this machine cannot measure them.
fn asked(question: Question) -> Option<Vec<Table>> {
    let error = match question.ask(&plan()) {
        Ok(tables) => return Some(tables),
        Err(error) => format!("{error:#}"),
    };
    let is_root = rustix::process::geteuid().is_root();
    let no_mount = "no mount of ext4, XFS or btrfs can be watched";
    let reason = if is_root { no_mount } else { "only root may" };
    assert!(error.contains(reason), "{}: {error}", question.name());
    eprintln!("{} was not asked: {error}", question.name());
    None
}

#[test]
fn every_question_yields_its_tables_and_exact_figures_repeat() {
    for &question in Question::value_variants() {
        let (Some(tables), name) = (asked(question), question.name()) else { continue };
        for table in &tables {
            assert!(!table.rows.is_empty(), "{name}");
            assert!(
                table.rows.iter().all(|row| row.len() == table.header.len()),
                "{name}\n{table}"
            );
            let text = table.to_string();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{name}\n{text}");
        }
        let exact = |tables: Vec<Table>| -> Vec<Table> {
            tables.into_iter().filter(|table| table.is_exact).collect()
        };
        let first = exact(tables);
        if !first.is_empty() {
            assert_eq!(Some(first), asked(question).map(exact), "{name}");
        }
    }
}

/// The number in a cell: of the first row that begins with these cells, in the last column with this name.
fn number(table: &Table, row: [&str; 2], column: &str) -> f64 {
    let mut first = "";
    let found = table.rows.iter().find(|cells| {
        first = if cells[0].is_empty() { first } else { &cells[0] };
        [first, &cells[1]] == row
    });
    let at = table.header.iter().rposition(|name| name == column).expect(column);
    found.unwrap_or_else(|| panic!("{row:?}\n{table}"))[at].parse().expect(column)
}

/// The document draws these conclusions.
#[test]
fn small_runs_support_the_conclusions_of_the_document() {
    let ask = |question: Question| question.ask(&plan()).unwrap();
    let aged = &ask(Question::GroupsAged)[0];
    let scan = |variant| number(aged, ["90%", variant], "requests per file");
    assert!(scan("C-FFS") * 5.0 <= scan("conventional"), "{aged}");

    let [fresh, used] = &ask(Question::SmallFileBandwidth)[..] else { panic!("two tables") };
    let read = |variant| number(used, ["read", variant], "files/s");
    assert!(read("C-FFS") > read("C-FFS without grouping") * 1.1, "{used}");
    let read = |variant| number(fresh, ["read", variant], "files/s");
    assert!(read("C-FFS") > read("C-FFS without grouping") * 1.1, "{fresh}");

    let techniques = &ask(Question::EachTechnique)[0];
    let rate = |phase, variant| number(techniques, [phase, variant], "files/s");
    for (phase, one) in [("read", "grouping alone"), ("remove", "embedding alone")] {
        assert!(rate(phase, one) > rate(phase, "neither") * 1.5, "{phase}\n{techniques}");
        assert!(rate(phase, "both") > rate(phase, one) * 1.1, "{phase}\n{techniques}");
    }

    let unrelated = &ask(Question::UnrelatedBytes)[0];
    let other = |variant, column: &str| {
        let at = unrelated.header.iter().position(|name| name == column).expect(column);
        let mut rows = unrelated.rows.iter().filter(|row| row[1] == variant && row[2] == "a file");
        rows.next().expect(variant)[at].parse::<f64>().expect(column)
    };
    let ungrouped = other("C-FFS without grouping", "other files");
    assert!(ungrouped * 2.0 < other("C-FFS, segments alone", "other files"), "{unrelated}");
    assert!(other("C-FFS", "KiB read") > other("C-FFS", "KiB asked for"), "{unrelated}");

    let predicted = &ask(Question::TimesPredicted)[0];
    let largest = |from| {
        let row = predicted.rows.iter().find(|row| row[1] == from).expect(from);
        row[5].trim_end_matches(" times").parse::<f64>().expect(from)
    };
    assert!(largest("seeks and bytes") * 2.0 < largest("requests"), "{predicted}");

    let tiny = &ask(Question::TinyFiles)[0];
    let read = |variant| number(tiny, ["read", variant], "ms per file");
    assert!(read("C-FFS without inlining") > read("C-FFS") * 1.05, "{tiny}");

    let [by_load, by_interval] = &ask(Question::RecoveryUnderLoad)[..] else {
        panic!("two tables")
    };
    let answered = |journal| number(by_load, [journal, "400"], "answered");
    assert!(answered("yes") > answered("no") * 1.1, "{by_load}");
    let seconds = |row: usize| by_interval.rows[row][8].parse::<f64>().expect("seconds");
    assert!(seconds(2) < seconds(0), "{by_interval}");

    let hints = &ask(Question::Hints)[0];
    let alone = |variant| number(hints, ["whole", variant], "alone");
    for variant in ["C-FFS, by hint", "C-FFS, by list", "C-FFS, by use"] {
        assert!(alone(variant) * 1.1 < alone("C-FFS, by directory"), "{variant}\n{hints}");
    }

    let log = &ask(Question::LogOrder)[0];
    let one = |placed| number(log, ["alternately", placed], "one directory: s");
    assert!(one("by directory") * 1.1 < one("in the order of writing"), "{log}");

    let keys = &ask(Question::Keys)[0];
    for (policy, column) in [(1, "an owner"), (2, "a minute"), (3, "a process")] {
        let at = keys.header.iter().position(|name| name == column).expect(column);
        let requests = |row: usize| keys.rows[row][at].parse::<u64>().expect(column);
        assert!(requests(policy) < requests(0), "{column}\n{keys}");
    }
}

#[test]
fn the_document_has_the_command_of_every_question() {
    for question in Question::value_variants() {
        let name = question.name();
        assert!(DOCUMENT.contains(&format!(" --only {name}\n")), "{name}");
    }
}

#[test]
fn rows_with_one_name_are_grouped() {
    let mut table = Table::new(["", "n"], 1);
    for (name, number) in [("a", 1), ("b", 2), ("a", 3)] {
        table.row([String::from(name), number.to_string()]);
    }
    let cells: Vec<String> = table.grouped().rows.concat();
    assert_eq!(cells, ["a", "1", "", "3", "b", "2"]);
}

#[test]
fn directories_that_cannot_be_counted_are_named_with_their_option() {
    let empty = tempfile::tempdir().unwrap();
    let said = |error: Error| format!("{error:#}");
    let missing = Plan { trees: vec![empty.path().join("not-there")], ..plan() };
    let error = said(missing.check().unwrap_err());
    assert!(error.starts_with("--trees /") && error.contains("not-there: No such file"), "{error}");
    let missing = Plan { configuration: empty.path().join("not-there"), ..plan() };
    let error = said(missing.check().unwrap_err());
    assert!(error.starts_with("--configuration /"), "{error}");
    plan().check().unwrap();

    let hollow = Plan { trees: vec![empty.path().to_owned()], ..plan() };
    let error = said(Question::SmallFilesMatter.ask(&hollow).unwrap_err());
    let hint = "has no files to count: name other directories with --trees";
    assert!(error.ends_with(hint), "{error}");
    let hollow = Plan { configuration: empty.path().to_owned(), ..plan() };
    let error = said(Question::Configuration.ask(&hollow).unwrap_err());
    assert!(error.ends_with("name another directory with --configuration"), "{error}");
}
