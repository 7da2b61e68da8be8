//! Parses the text after the options in `--help`.
//!
//! The text is written for a terminal, in this form:
//!
//! ```text
//! A title:
//!   term             what it means, which may
//!                    continue in the next lines
//!   a term that is too long for its column
//!                    what it means
//! A sentence of its own, from the margin on.
//! In /a/file:
//!   a line  of the file, to the letter
//! ```

/// A title and the entries below it.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The title without its colon; empty for entries without a title.
    pub title: String,
    /// The entries below the heading.
    pub entries: Vec<Entry>,
}

/// A part of a block.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// An option or a command line, with its meaning.
    Item {
        /// The term, unchanged.
        term: String,
        /// The meaning, in one line; may be empty.
        description: String,
    },
    /// A sentence.
    Text(String),
}

impl Block {
    /// Whether its items are options rather than examples.
    pub fn is_list_of_options(&self) -> bool {
        self.title.starts_with("Options")
    }

    fn shows_a_file(&self) -> bool {
        self.title.starts_with("In /")
    }

    fn add(&mut self, line: &str) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let is_item = indent == ITEM_INDENT;
        match (is_item, self.entries.last_mut()) {
            (false, Some(Entry::Item { description, .. })) if indent > 0 => {
                append(description, text);
            }
            (false, Some(Entry::Text(last))) if indent == 0 => append(last, text),
            (false, _) => self.entries.push(Entry::Text(text.to_owned())),
            (true, _) => {
                let gap = if self.shows_a_file() { None } else { text.split_once("  ") };
                let (term, description) = gap.unwrap_or((text, ""));
                let (term, description) = (term.to_owned(), description.trim_start().to_owned());
                self.entries.push(Entry::Item { term, description });
            }
        }
    }
}

const ITEM_INDENT: usize = 2;

/// The parts of a text, in order.
pub fn parse(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let title = line.strip_suffix(':').filter(|_| !line.starts_with(' '));
        let title = title.map(|title| title.split(',').next().unwrap_or(title));
        if title.is_some() || blocks.is_empty() {
            let title = title.unwrap_or_default().to_owned();
            blocks.push(Block { title, entries: Vec::new() });
        }
        if let (None, Some(block)) = (title, blocks.last_mut()) {
            block.add(line);
        }
    }
    // `Example:  cffs …` may be a single line without entries below it.
    blocks.retain(|block| !block.entries.is_empty());
    blocks
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(more);
}
