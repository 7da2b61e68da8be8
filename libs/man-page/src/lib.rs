//! Man pages and completions, from the definition of a command line.
//!
//! A page has the sections that man-pages(7) requires. `help_text` parses the text that a command prints
//! after its options in `--help`, and the page lays it out again: so the text has a single source and fits
//! any width.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, Command};
use clap_complete::Shell;
use roff::{Inline, Roff, bold, italic, roman};

use help_text::{Block, Entry};

mod help_text;
#[cfg(test)]
mod tests;

/// Space at which troff does not break a line.
const UNBREAKABLE_SPACE: &str = "\u{a0}";
/// How far examples are indented, in characters.
const EXAMPLE_INDENT: &str = "4";

/// A page to write.
pub struct Page<'a> {
    /// The name of the page.
    pub name: &'a str,
    /// The section of the manual.
    pub section: u8,
    /// The command line of the program, before its arguments.
    pub invocation: &'a str,
    /// The definition of its command line. Must have been built.
    pub command: &'a Command,
    /// Every exit code, with its meaning.
    pub statuses: &'a [(u8, &'a str)],
    /// Other pages, each with its section.
    pub see_also: Vec<String>,
}

impl Page<'_> {
    /// Writes the page to the place below `directory` where man(1) looks for it.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let directory = directory.join(format!("man{}", self.section));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("{}.{}", self.name, self.section)), self.render())
    }

    /// The troff source of the page.
    pub fn render(&self) -> String {
        let mut roff = Roff::new();
        self.title(&mut roff);
        heading(&mut roff, "SYNOPSIS");
        self.synopses(&mut roff);
        self.description(&mut roff);
        arguments(&mut roff, self.command);
        let blocks = help_text::parse(&shown(self.command.get_after_help()));
        for block in blocks.iter().filter(|block| block.is_list_of_options()) {
            list_of_options(&mut roff, block);
        }
        self.subcommands(&mut roff);
        exit_status(&mut roff, self.statuses);
        examples(&mut roff, blocks.iter().filter(|block| !block.is_list_of_options()));
        heading(&mut roff, "SEE ALSO");
        roff.control("ad", ["l"]);
        roff.text([roman(self.see_also.join(", "))]);
        // As a troff escape: with LANG=C, man(1) drops the character itself.
        roff.render().replace(UNBREAKABLE_SPACE, "\\ ")
    }

    fn title(&self, roff: &mut Roff) {
        let source = format!("C-FFS {}", env!("CARGO_PKG_VERSION"));
        let section = self.section.to_string();
        // Without a date, so that the same source always gives the same page.
        roff.control("TH", [&*self.name.to_uppercase(), &section, "\"\"", &source, "C-FFS Manual"]);
        heading(roff, "NAME");
        let about = shown(self.command.get_about());
        let about = about.trim_end_matches('.');
        roff.text([roman(format!("{} - {}", self.name, lower_first(about)))]);
    }

    fn description(&self, roff: &mut Roff) {
        heading(roff, "DESCRIPTION");
        let about = self.command.get_long_about().or_else(|| self.command.get_about());
        let about = shown(about);
        // The first paragraph repeats the title, without its full stop.
        let body = about.split_once("\n\n").map_or(&*about, |(_, body)| body);
        paragraphs(roff, &sentence(body));
    }

    /// The synopsis: a line for each subcommand that has arguments of its own.
    fn synopses(&self, roff: &mut Roff) {
        let is_root = self.command.get_name() == self.invocation;
        if is_root && self.command.has_subcommands() {
            let arguments = [italic("COMMAND"), roman(" ["), italic("ARGUMENT"), roman("...]")];
            synopsis(roff, self.invocation, [arguments.to_vec()]);
            return;
        }
        let own = words(self.command, true);
        if !self.command.has_subcommands() {
            synopsis(roff, self.invocation, own);
            return;
        }
        for command in visible_subcommands(self.command) {
            let name = vec![bold(command.get_name())];
            let all = own.iter().cloned().chain([name]).chain(words(command, false));
            synopsis(roff, self.invocation, all);
        }
    }

    fn subcommands(&self, roff: &mut Roff) {
        let mut commands = visible_subcommands(self.command).peekable();
        if commands.peek().is_none() {
            return;
        }
        heading(roff, "COMMANDS");
        let is_root = self.command.get_name() == self.invocation;
        for command in commands {
            roff.control("TP", []);
            if is_root {
                roff.text([bold(format!("{}-{}", self.name, command.get_name())), roman("(1)")]);
                roff.text([roman(sentence(&shown(command.get_about())))]);
                continue;
            }
            let mut header = vec![bold(command.get_name())];
            for word in words(command, false) {
                header.push(roman(" "));
                header.extend(word);
            }
            roff.text(header);
            roff.text([roman(sentence(&shown(command.get_about())))]);
            for argument in command.get_positionals() {
                roff.control("br", []);
                roff.text([italic(value_name(argument)), roman(format!(": {}", help(argument)))]);
            }
        }
    }
}

fn heading(roff: &mut Roff, title: &str) {
    roff.control("SH", [title]);
}

/// The plain text of clap's styled text.
fn shown(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

fn synopsis(roff: &mut Roff, invocation: &str, words: impl IntoIterator<Item = Vec<Inline>>) {
    roff.control("SY", [invocation]);
    for word in words {
        roff.text(word);
    }
    roff.control("YS", []);
}

/// The words of a synopsis: options in brackets, mutually exclusive ones together, then the operands. Options
/// of every command are left out, and so are, unless `with_global`, those that a subcommand inherits.
fn words(command: &Command, with_global: bool) -> Vec<Vec<Inline>> {
    let mut words = Vec::new();
    let mut grouped: Vec<&clap::Id> = Vec::new();
    let options = visible(command)
        .filter(|argument| !argument.is_positional())
        .filter(|argument| with_global || !argument.is_global_set());
    for option in options {
        let id = option.get_id();
        if ["help", "version"].contains(&id.as_str()) || grouped.contains(&id) {
            continue;
        }
        let group = command
            .get_groups()
            .find(|group| allows_one(group) && group.get_args().any(|member| member == id));
        let members: Vec<&Arg> = match group {
            Some(group) => {
                visible(command).filter(|a| group.get_args().any(|id| id == a.get_id())).collect()
            }
            None => vec![option],
        };
        grouped.extend(members.iter().map(|member| member.get_id()));
        words.push(alternatives(&members));
    }
    for argument in command.get_positionals().filter(|argument| !argument.is_hide_set()) {
        let (open, close) = if argument.is_required_set() { ("", "") } else { ("[", "]") };
        let dots = if takes_many(argument) { "..." } else { "" };
        words.push(vec![
            roman(open),
            italic(value_name(argument)),
            roman(format!("{dots}{close}")),
        ]);
    }
    words
}

/// Whether at most one option of the group can be given.
fn allows_one(group: &clap::ArgGroup) -> bool {
    let mut group = group.clone();
    !group.is_multiple()
}

/// `[-n|-y]`: at most one of these.
fn alternatives(options: &[&Arg]) -> Vec<Inline> {
    let is_required = options.iter().any(|option| option.is_required_set());
    let mut word = Vec::new();
    for (index, option) in options.iter().enumerate() {
        word.push(roman(match (index, is_required) {
            (0, true) => "",
            (0, false) => "[",
            _ => "|",
        }));
        word.push(match (option.get_short(), option.get_long()) {
            (Some(short), _) => bold(format!("-{short}")),
            (None, long) => bold(format!("--{}", long.unwrap_or_default())),
        });
        word.extend(value(option, UNBREAKABLE_SPACE));
    }
    word.push(roman(if is_required { "" } else { "]" }));
    word
}

/// The value of an option, as written after it.
fn value(option: &Arg, space: &str) -> Vec<Inline> {
    let range = option.get_num_args().unwrap_or_default();
    if !range.takes_values() {
        return Vec::new();
    }
    let name = italic(value_name(option));
    match (range.min_values(), option.is_require_equals_set()) {
        (0, _) => vec![roman("[="), name, roman("]")],
        (_, true) => vec![roman("="), name],
        (_, false) => vec![roman(space), name],
    }
}

fn value_name(argument: &Arg) -> String {
    match argument.get_value_names() {
        Some(names) => names.join(" "),
        None => argument.get_id().as_str().to_uppercase(),
    }
}

fn takes_many(argument: &Arg) -> bool {
    argument.get_num_args().is_some_and(|range| range.max_values() > 1)
}

fn visible(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|argument| !argument.is_hide_set())
}

/// The sections of the arguments and of the options.
fn arguments(roff: &mut Roff, command: &Command) {
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) =
        visible(command).partition(|argument| argument.is_positional());
    for (title, arguments) in [("ARGUMENTS", positional), ("OPTIONS", options)] {
        if arguments.is_empty() {
            continue;
        }
        heading(roff, title);
        for argument in arguments {
            roff.control("TP", []);
            roff.text(flags(argument));
            described(roff, argument);
        }
    }
}

/// `-f, --force`, or the name of an operand.
fn flags(argument: &Arg) -> Vec<Inline> {
    if argument.is_positional() {
        return vec![italic(value_name(argument))];
    }
    let short = argument.get_short().into_iter();
    let short = short.chain(argument.get_visible_short_aliases().unwrap_or_default());
    let names = short.map(|short| format!("-{short}"));
    let names = names.chain(argument.get_long().map(|long| format!("--{long}")));
    let mut header = Vec::new();
    for name in names {
        if !header.is_empty() {
            header.push(roman(", "));
        }
        header.push(bold(name));
    }
    header.extend(value(argument, " "));
    header
}

fn help(argument: &Arg) -> String {
    // clap's own text mentions a shorter form, which exists only on the terminal.
    if argument.get_id() == "help" {
        return String::from("Print help.");
    }
    sentence(&shown(argument.get_long_help().or_else(|| argument.get_help())))
}

/// Writes an argument's meaning, its values and its default.
fn described(roff: &mut Roff, argument: &Arg) {
    let mut text = help(argument);
    let defaults = argument.get_default_values();
    let takes_value = argument.get_num_args().is_some_and(|range| range.takes_values());
    if takes_value && !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let defaults: Vec<_> = defaults.iter().map(|value| value.to_string_lossy()).collect();
        text = format!("{text} Default: {}.", defaults.join(", ")).trim_start().to_owned();
    }
    paragraphs(roff, &text);
    let values = argument.get_possible_values();
    let mut values = values.iter().filter(|value| !value.is_hide_set()).peekable();
    if !takes_value || values.peek().is_none() {
        return;
    }
    roff.control("RS", []);
    for value in values {
        roff.control("TP", []);
        roff.text([bold(value.get_name())]);
        roff.text([roman(sentence(&shown(value.get_help())))]);
    }
    roff.control("RE", []);
}

fn list_of_options(roff: &mut Roff, block: &Block) {
    // An option keeps its case.
    let words = block.title.split(' ');
    let words =
        words.map(|word| if word.starts_with('-') { word.into() } else { word.to_uppercase() });
    heading(roff, &words.collect::<Vec<String>>().join(" "));
    for entry in &block.entries {
        match entry {
            Entry::Item { term, description } => {
                roff.control("TP", []);
                roff.text([bold(term)]);
                roff.text([roman(description)]);
            }
            Entry::Text(text) => {
                roff.control("PP", []);
                roff.text([roman(text)]);
            }
        }
    }
}

fn exit_status(roff: &mut Roff, statuses: &[(u8, &str)]) {
    heading(roff, "EXIT STATUS");
    for (code, meaning) in statuses {
        roff.control("TP", []);
        roff.text([bold(code.to_string())]);
        roff.text([roman(*meaning)]);
    }
}

fn examples<'a>(roff: &mut Roff, blocks: impl Iterator<Item = &'a Block>) {
    // Entries without a title come first.
    let (plain, titled): (Vec<&Block>, Vec<&Block>) =
        blocks.partition(|block| block.title.is_empty() || block.title.starts_with("Example"));
    if !plain.is_empty() || !titled.is_empty() {
        heading(roff, "EXAMPLES");
    }
    let is_titled = [(plain, false), (titled, true)];
    for (block, is_titled) in is_titled.iter().flat_map(|(all, is)| all.iter().map(|b| (*b, *is))) {
        if is_titled {
            roff.control("PP", []);
            roff.text([roman(format!("{}:", block.title))]);
        }
        for entry in &block.entries {
            example(roff, entry);
        }
    }
}

fn example(roff: &mut Roff, entry: &Entry) {
    match entry {
        Entry::Item { term, description } => {
            roff.control("PP", []);
            roff.control("RS", [EXAMPLE_INDENT]);
            roff.control("EX", []);
            roff.text([roman(term)]);
            roff.control("EE", []);
            roff.control("RE", []);
            if !description.is_empty() {
                roff.control("RS", ["8"]);
                roff.text([roman(description)]);
                roff.control("RE", []);
            }
        }
        Entry::Text(text) => {
            roff.control("PP", []);
            roff.text([roman(text)]);
        }
    }
}

/// Writes paragraphs with empty lines between them.
fn paragraphs(roff: &mut Roff, text: &str) {
    for (index, paragraph) in text.split("\n\n").enumerate() {
        if index > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(paragraph)]);
    }
}

/// The text with a full stop, which clap removes from the end of help.
fn sentence(text: &str) -> String {
    let ends = text.is_empty() || text.ends_with(['.', ':', '?', '!']);
    if ends { text.to_owned() } else { format!("{text}.") }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// Writes a page in section 1 for a program, and for each of its commands that is not hidden.
///
/// The definition must have been built. `statuses` has the exit codes of a command, or of the program. The
/// program's page also refers to `see_also`.
pub fn write_pages<'a>(
    definition: &'a Command,
    directory: &Path,
    statuses: impl Fn(Option<&'a str>) -> &'a [(u8, &'a str)],
    see_also: &[&str],
) -> io::Result<()> {
    let program = definition.get_name();
    let commands = || visible_subcommands(definition);
    let pages = commands().map(|command| format!("{program}-{}(1)", command.get_name()));
    Page {
        name: program,
        section: 1,
        invocation: program,
        command: definition,
        statuses: statuses(None),
        see_also: pages.chain(see_also.iter().map(|page| String::from(*page))).collect(),
    }
    .write(directory)?;
    for command in commands() {
        let name = command.get_name();
        Page {
            name: &format!("{program}-{name}"),
            section: 1,
            invocation: &format!("{program} {name}"),
            command,
            statuses: statuses(Some(name)),
            see_also: vec![format!("{program}(1)")],
        }
        .write(directory)?;
    }
    Ok(())
}

/// Writes completions of a program for bash, zsh and fish.
pub fn write_completions(
    mut definition: Command,
    program: &str,
    directory: &Path,
) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut definition, program, directory)?;
    }
    Ok(())
}
