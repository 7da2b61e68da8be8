use std::path::PathBuf;

use super::*;

const TEXT: &str = "# A\n\n<!-- exact: one -->\n\n| a |\n| b |\n\ntext\n";

#[test]
fn a_quoted_table_is_compared_and_replaced() {
    let mut document = Document::new(PathBuf::from("a.md"), TEXT);
    assert_eq!(document.names().collect::<Vec<_>>(), ["one"]);
    assert_eq!(document.differs("one", "| a |\n| b |\n"), None);
    assert_eq!(document.differs("one", "| a |\n"), Some(5));
    assert_eq!(document.differs("two", "| a |\n"), None);
    document.replace("one", "| c |\n");
    assert_eq!(document.text(), "# A\n\n<!-- exact: one -->\n\n| c |\n\ntext\n");
}

#[test]
fn a_marker_without_a_table_gets_one() {
    let mut document = Document::new(PathBuf::from("a.md"), "<!-- exact: one -->\n");
    assert_eq!(document.differs("one", "| a |\n"), Some(3));
    document.replace("one", "| a |\n");
    assert_eq!(document.text(), "<!-- exact: one -->\n\n| a |\n");
    assert_eq!(document.differs("one", "| a |\n"), None);
}

/// README and docs/ have the figures that this program prints.
#[test]
fn published_figures_are_those_that_the_program_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    run(&root, false).unwrap();
}
