//! The complete page of a small program, and the parts of the text after the options.

use clap::{ArgAction, ArgGroup};

use super::*;

fn item(term: &str, description: &str) -> Entry {
    Entry::Item { term: term.to_owned(), description: description.to_owned() }
}

const TEXT: &str = "\
Options for -o, comma-separated:
  ro, rw         without or with
                 writes
  [no]suid, [no]dev
                 as for mount(8)
Others are
passed over.

Examples:
  cffs x y       what it does
  cffs z
In /etc/fstab:
  a  b  c";

#[test]
fn help_text_falls_into_its_parts() {
    let blocks = help_text::parse(TEXT);
    let titles: Vec<&str> = blocks.iter().map(|block| &*block.title).collect();
    assert_eq!(titles, ["Options for -o", "Examples", "In /etc/fstab"]);
    assert!(blocks[0].is_list_of_options() && !blocks[1].is_list_of_options());
    assert_eq!(
        blocks[0].entries,
        [
            item("ro, rw", "without or with writes"),
            item("[no]suid, [no]dev", "as for mount(8)"),
            Entry::Text(String::from("Others are passed over.")),
        ]
    );
    assert_eq!(blocks[1].entries, [item("cffs x y", "what it does"), item("cffs z", "")]);
    assert_eq!(blocks[2].entries, [item("a  b  c", "")], "a file's line is left as it is");
}

fn program() -> Command {
    let flag = |name: &'static str, short| {
        Arg::new(name).short(short).action(ArgAction::SetTrue).help(format!("Do {name}"))
    };
    let mut command = Command::new("prog")
        .about("Make a thing")
        .long_about("Make a thing\n\nFirst words.\n\nMore words.")
        .args([flag("no", 'n'), flag("yes", 'y'), flag("hidden", 'z').hide(true)])
        .group(ArgGroup::new("repair").args(["no", "yes"]))
        .arg(Arg::new("size").short('s').long("size").value_name("SIZE").default_value("4k"))
        .arg(Arg::new("how").long("how").value_parser(["a", "b"]).required(true))
        .arg(Arg::new("watch").long("watch").num_args(0..=1).require_equals(true))
        .arg(Arg::new("image").value_name("IMAGE").required(true).help("The 'image' of -x"))
        .arg(Arg::new("path").value_name("PATH").num_args(1..))
        .after_help(TEXT);
    command.build();
    command
}

#[test]
fn a_page_has_every_argument_with_its_value() {
    let command = program();
    let page = Page {
        name: "cffs-prog",
        section: 1,
        invocation: "cffs prog",
        command: &command,
        statuses: &[(0, "Success."), (32, "Failure.")],
        see_also: vec![String::from("cffs(1)")],
    };
    let text = page.render();
    let section = |title: &str| {
        let after = text.split(&format!("\n.SH {title}\n")).nth(1).expect(title);
        after.split("\n.SH ").next().unwrap_or_default().to_owned()
    };
    assert_eq!(section("NAME"), "cffs\\-prog \\- make a thing");
    let synopsis = section("SYNOPSIS").replace("\\fR", "").replace("\\fB", "").replace("\\fI", "");
    let expected = ".SY \"cffs prog\"\n[\\-n|\\-y]\n[\\-s\\ SIZE]\n\\-\\-how\\ HOW\n\
                    [\\-\\-watch[=WATCH]]\nIMAGE\n[PATH...]\n.YS";
    assert_eq!(synopsis, expected);
    assert_eq!(section("DESCRIPTION"), "First words.\n.PP\nMore words.");
    assert!(section("ARGUMENTS").contains("The \\*(Aqimage\\*(Aq of \\-x."));
    let options = section("OPTIONS");
    assert!(options.contains("\\fB\\-s\\fR, \\fB\\-\\-size\\fR \\fISIZE\\fR\nDefault: 4k."));
    assert!(!text.contains("hidden"), "{text}");
    assert!(section("\"OPTIONS FOR -o\"").contains(".TP\n\\fBro, rw\\fR\nwithout or with writes"));
    assert!(section("\"EXIT STATUS\"").contains("\\fB32\\fR"));
    assert!(section("EXAMPLES").contains("cffs x y\n.EE"));
    assert!(section("EXAMPLES").contains(".PP\nIn /etc/fstab:\n"));
    assert_eq!(section("\"SEE ALSO\""), ".ad l\ncffs(1)\n");
}

/// Regression: with LANG=C, man(1) dropped non-breaking spaces: `cffsmkfs`.
#[test]
fn spaces_are_escapes_of_troff() {
    let command = program();
    let page = Page {
        name: "prog",
        section: 1,
        invocation: "prog sub",
        command: &command,
        statuses: &[(0, "Success.")],
        see_also: Vec::new(),
    };
    let source = page.render();
    assert!(!source.contains(UNBREAKABLE_SPACE), "{source}");
    assert!(source.contains("\\ "), "{source}");
}
