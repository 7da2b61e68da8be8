use clap::CommandFactory;

use super::{Cli, HELP_WIDTH};

/// Lists of options and examples are formatted by hand: the help must not wrap their lines.
#[test]
fn no_line_of_the_help_is_broken() {
    let definition = Cli::command();
    let commands = definition.get_subcommands().chain([&definition]);
    for command in commands {
        let list = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in list.lines() {
            assert!(line.chars().count() <= HELP_WIDTH, "{}: {line}", command.get_name());
        }
    }
}
