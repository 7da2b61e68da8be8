//! From findings to `docs/questions.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Findings, Plan, Question, Repeats};
use crate::report::curve;
use crate::report::table::{markdown_table, wrap};
use crate::workload::catalog::Scale;

/// The directory of the charts, beside the document.
const CHARTS: &str = "questions";

/// The remark on figures that differ a little from run to run.
const NEARLY: &str = "More than the cache holds, and what a full cache drops is chance: these figures\n\
    differ a little from run to run.\n\n";

/// The document.
pub fn markdown(plan: &Plan, answers: &[(Question, Findings)]) -> String {
    let mut out = String::from("# The papers' questions, answered by measurement\n\n");
    let small = if plan.scale == Scale::Quick { " --quick" } else { "" };
    let command = format!("cffs-bench questions --seed {}{small}", plan.seed);
    for text in [
        format!(
            "Written by `make questions`, which runs `{command} --output docs`. Every answer is put together \
             from the figures above it. One question alone is asked with `--only` and its name."
        ),
        String::from(
            "Unless a section says otherwise, C-FFS runs as a library on an emulated disk in virtual time \
             (docs/performance): requests and seconds are the disk's alone, and the same on every \
             machine. *Conventional* is C-FFS with its techniques switched off, on a volume that looks like \
             one in use for years; *without grouping* places and reads each file by itself.",
        ),
    ] {
        let _ = writeln!(out, "{}", wrap(&text));
    }
    let verdicts = answers.iter().map(|(question, findings)| {
        let link = format!("[{}](#{})", question.title(), anchor(question.title()));
        vec![link, question.source().to_owned(), findings.verdict.clone()]
    });
    let _ = writeln!(out, "{}", markdown_table(&["question", "asked in", "answer"], verdicts, 3));
    for (question, findings) in answers {
        section(*question, findings, &command, &mut out);
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

fn section(question: Question, findings: &Findings, command: &str, out: &mut String) {
    let _ = write!(out, "## {}\n\n{}\n", question.title(), wrap(question.source()));
    let _ = write!(out, "    {command} --only {}\n\n{}\n", question.name(), wrap(&findings.how));
    for table in &findings.tables {
        match table.repeats {
            Repeats::Exactly => {}
            Repeats::Nearly => out.push_str(NEARLY),
            Repeats::Here => out.push_str("Figures of the machine that wrote this:\n\n"),
        }
        let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
        let table = markdown_table(&header, table.rows.iter().cloned(), table.numbers);
        let _ = writeln!(out, "{table}");
    }
    for chart in &findings.charts {
        let _ = writeln!(out, "![{}]({CHARTS}/{}.svg)\n", chart.title, chart.name);
    }
    let _ = writeln!(out, "{}", wrap(&format!("**{}.** {}", findings.verdict, findings.answer)));
}

/// Writes `questions.md` and its charts into a directory.
pub fn write(plan: &Plan, answers: &[(Question, Findings)], directory: &Path) -> Result<()> {
    let charts = directory.join(CHARTS);
    fs::create_dir_all(&charts).with_context(|| format!("make {}", charts.display()))?;
    let write = |path: &Path, contents: &str| {
        fs::write(path, contents).with_context(|| format!("write {}", path.display()))
    };
    for chart in answers.iter().flat_map(|(_, findings)| &findings.charts) {
        write(&charts.join(format!("{}.svg", chart.name)), &curve::draw(chart)?)?;
    }
    write(&directory.join("questions.md"), &markdown(plan, answers))
}

/// The anchor of a heading, by GitHub's rules.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}
