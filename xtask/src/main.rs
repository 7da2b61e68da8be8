//! Checks of the source tree itself: `cargo run -p xtask` prints all findings, and `cargo test -p xtask`
//! fails if it finds any.
//!
//! - [`layers`]: no module of `cffs` or `cffs-serve` uses a module above it;
//! - [`manifests`]: no crate depends on a crate above it;
//! - [`promises`]: each chapter of the semantics names tests that show it, and they exist;
//! - [`papers`]: the map from the papers to the code names files and tests that exist;
//! - [`circles`]: no files of one crate use each other in a cycle;
//! - [`citations`]: chapters, decisions and files that are cited exist;
//! - [`dialect`]: words that only this project uses become fewer;
//! - [`lengths`]: no function or file is too long;
//! - [`rooms`]: no type has too many methods, nor is it spread over too many files;
//! - [`tidy`]: no line is too long, and nothing unfinished is left behind.
//!
//! Each check is a pure function of a [`Tree`], so that its tests can run it on small faulty trees.

use std::path::Path;
use std::process::ExitCode;

use tree::{Finding, Tree};

mod circles;
mod citations;
mod dialect;
mod layers;
mod lengths;
mod manifests;
mod papers;
mod paths;
mod promises;
mod rooms;
#[cfg(test)]
mod tests;
mod tidy;
mod tree;

fn main() -> ExitCode {
    match check_workspace() {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            for finding in findings {
                println!("{finding}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("cannot read the source tree: {error}");
            ExitCode::from(2)
        }
    }
}

/// All findings in the workspace from which this program was built.
fn check_workspace() -> std::io::Result<Vec<Finding>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = Tree::read(&root)?;
    let mut findings = layers::check(&tree);
    findings.extend(manifests::check(&tree));
    findings.extend(promises::check(&tree));
    findings.extend(papers::check(&tree));
    findings.extend(circles::check(&tree));
    findings.extend(citations::check(&tree));
    findings.extend(dialect::check(&tree));
    findings.extend(lengths::check(&tree));
    findings.extend(rooms::check(&tree));
    findings.extend(tidy::check(&tree));
    findings.sort();
    Ok(findings)
}
