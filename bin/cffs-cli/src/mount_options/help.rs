//! The lists of mount options in `--help` and the man pages.

use super::table::TABLE;
use crate::output::HELP_WIDTH;

/// The column of descriptions.
const COLUMN: usize = 25;

/// The options under a title, in the format that `man_page` reads.
pub fn help() -> String {
    let mut text = String::from("Options for -o, comma-separated:\n");
    for option in TABLE {
        let mut line = format!("  {}", option.term);
        if line.len() + 2 > COLUMN {
            text += &(line + "\n");
            line = String::new();
        }
        for paragraph in option.help.lines() {
            fill(&mut text, line, COLUMN, paragraph);
            line = String::new();
        }
    }
    text
}

/// The options that `cffs serve` also uses, in a sentence.
pub fn help_of_serve() -> String {
    let terms: Vec<&str> =
        TABLE.iter().filter(|option| option.for_serve).map(|option| option.term).collect();
    let mut text = String::new();
    let sentence = format!("{}; cffs-mount(1) explains them.", terms.join(", "));
    fill(
        &mut text,
        String::from("Options of -o are those of mount that concern the volume:"),
        0,
        &sentence,
    );
    text
}

/// Appends `words` in lines indented to `indent`; the first line already contains `line`.
fn fill(text: &mut String, mut line: String, indent: usize, words: &str) {
    for word in words.split(' ') {
        if line.len() > indent && line.len() + 1 + word.len() > HELP_WIDTH {
            *text += &(line + "\n");
            line = String::new();
        }
        match line.len() {
            0.. if line.len() < indent => line += &" ".repeat(indent - line.len()),
            0 => {}
            _ => line.push(' '),
        }
        line += word;
    }
    *text += &(line + "\n");
}
