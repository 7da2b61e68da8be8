//! Small runs: every question yields its tables, and what is exact repeats.

use std::path::{Path, PathBuf};

use anyhow::Error;

use super::*;

fn plan() -> Plan {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    Plan {
        scale: Scale::Quick,
        seed: 1,
        trees: vec![crates.join("src")],
        configuration: crates.to_owned(),
        cffs: PathBuf::from("cffs"),
    }
}

fn asked(question: Question) -> Findings {
    question.ask(&plan()).unwrap_or_else(|error| panic!("{}: {error:#}", question.name()))
}

/// Whether something was left out for a reason that is this machine's.
fn is_impossible_here(found: &Findings) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let no_mount = "no mount of ext4, XFS or btrfs can be watched";
    let reason = if is_root { no_mount } else { "only root may" };
    found.verdict == "Not measured" && found.answer.contains(reason)
}

/// The answers of small runs of the library. A changed answer needs a review.
fn expected(question: Question) -> Option<&'static str> {
    Some(match question {
        Question::SmallFilesSlower => "Yes, but not on C-FFS",
        Question::GroupsAged | Question::SmallFileBandwidth | Question::TinyServers => "Yes",
        Question::Applications => "Yes, of some programs",
        Question::LargeFileBandwidth => "No",
        Question::Hints => "For a document alone, not yet for many",
        Question::Keys => "Each one, for what is read by it",
        Question::TinyFiles => "For reads",
        _ => return None,
    })
}

#[test]
fn every_question_yields_its_tables() {
    for &question in Question::all() {
        let (found, name) = (asked(question), question.name());
        if is_impossible_here(&found) {
            eprintln!("{name} was not asked: {}", found.answer);
            continue;
        }
        assert!(!found.tables.is_empty(), "{name}: {}", found.answer);
        for table in &found.tables {
            assert!(!table.rows.is_empty(), "{name}");
            assert!(
                table.rows.iter().all(|row| row.len() == table.header.len()),
                "{name}: {table:?}"
            );
        }
        let is_number = |text: &str| !text.contains("NaN") && !text.contains("inf");
        assert!(is_number(&format!("{} {:?}", found.answer, found.tables)), "{name}: {found:?}");
    }
}

#[test]
fn answers_are_those_of_the_library_and_exact_figures_repeat() {
    let mut wrong = Vec::new();
    for &question in Question::all() {
        let Some(verdict) = expected(question) else { continue };
        let found = asked(question);
        if found.verdict != verdict {
            wrong.push(format!("{}: {}. {}", question.name(), found.verdict, found.answer));
        }
        let exact = |found: &Findings| -> Vec<Table> {
            let exact = |table: &&Table| table.repeats == Repeats::Exactly;
            found.tables.iter().filter(exact).cloned().collect()
        };
        let first = exact(&found);
        if !first.is_empty() && first != exact(&asked(question)) {
            wrong.push(format!("{}: other figures the second time", question.name()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A question that was added has to be answered in the document, too.
#[test]
fn the_document_has_every_question_with_its_command() {
    let document = include_str!("../../../../docs/questions.md");
    for question in Question::all() {
        let (title, name) = (question.title(), question.name());
        assert!(document.contains(&format!("\n## {title}\n")), "{title}");
        assert!(document.contains(&format!(" --only {name}\n")), "{name}");
    }
}

#[test]
fn what_cannot_be_measured_is_said_with_its_reason() {
    let found = Findings::not_measured(String::from("How."), &Error::msg("only root may mount"));
    let text = document::markdown(&plan(), &[(Question::GroupedToday, found)]);
    let said = "**Not measured.** Where this was written, it could not be: only root may mount.";
    assert!(text.contains(said), "{text}");
}

#[test]
fn rows_with_one_name_come_together() {
    let mut table = Table::new(["", "n"], 1);
    for (name, number) in [("a", 1), ("b", 2), ("a", 3)] {
        table.row([String::from(name), number.to_string()]);
    }
    let cells: Vec<String> = table.grouped().rows.concat();
    assert_eq!(cells, ["a", "1", "", "3", "b", "2"]);
}

#[test]
fn the_document_links_to_the_charts_that_were_written() {
    let place = tempfile::tempdir().unwrap();
    let answers = vec![(Question::GroupsAged, asked(Question::GroupsAged))];
    document::write(&plan(), &answers, place.path()).unwrap();
    let text = std::fs::read_to_string(place.path().join("questions.md")).unwrap();
    assert!(text.contains("](questions/groups-aged.svg)"), "{text}");
    let chart = std::fs::read_to_string(place.path().join("questions/groups-aged.svg")).unwrap();
    assert!(chart.contains("Requests per file"), "{chart}");
    assert_eq!(text.matches("these figures\ndiffer a little").count(), 1, "{text}");
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
    assert!(
        error.ends_with("has no files to count: name other directories with --trees"),
        "{error}"
    );
    let hollow = Plan { configuration: empty.path().to_owned(), ..plan() };
    let error = said(Question::Configuration.ask(&hollow).unwrap_err());
    assert!(error.ends_with("name another directory with --configuration"), "{error}");
}
