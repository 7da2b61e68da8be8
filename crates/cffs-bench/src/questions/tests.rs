//! Small runs: every question yields its tables, and what is exact repeats.

use super::*;

fn plan() -> Plan {
    Plan { scale: Scale::Quick, seed: 1 }
}

fn asked(question: Question) -> Findings {
    question.ask(&plan()).unwrap_or_else(|error| panic!("{}: {error:#}", question.name()))
}

#[test]
fn every_question_yields_its_table_and_exact_ones_repeat() {
    for question in Question::ALL {
        let found = asked(question);
        let name = question.name();
        assert!(!found.tables.is_empty(), "{name}");
        for table in &found.tables {
            assert!(!table.rows.is_empty(), "{name}");
            assert!(
                table.rows.iter().all(|row| row.len() == table.header.len()),
                "{name}: {table:?}"
            );
        }
        assert!(
            !found.answer.contains("NaN") && !found.answer.contains("inf"),
            "{name}: {}",
            found.answer
        );
        if question.is_exact() {
            let again = asked(question);
            assert_eq!(found.tables, again.tables, "{name}");
            assert_eq!(found.answer, again.answer, "{name}");
        }
    }
}
