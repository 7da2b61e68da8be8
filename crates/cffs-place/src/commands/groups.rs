//! `place groups`: the groups of a volume and their contents.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::output::{self, say};
use cffs_place::groups::{Groups, Unit};
use cffs_place::shadow::Shadow;

/// Show the groups of a volume, and which is the emptiest
///
/// Group 0 is the outermost of a disk. After place init, it also says which groups can be placed in.
#[derive(Debug, Args)]
#[command(name = "groups", after_help = EXAMPLES)]
pub struct ShowGroups {
    /// A directory on the volume.
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  place groups /srv
  place groups --json /srv | jq .emptiest";

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    groups: Groups,
    emptiest: u64,
    each: Vec<Each>,
}

#[derive(Serialize)]
struct Each {
    group: u64,
    free_bytes: u64,
    can_be_placed_in: bool,
}

impl ShowGroups {
    /// Reads the groups and prints them.
    pub fn run(self) -> Result<ExitCode> {
        let groups = Groups::of(&self.directory)?;
        let free = groups.free_bytes(&self.directory)?;
        let inside = self.directory.join("any");
        let reached = Shadow::find(&inside).map(|shadow| shadow.reached()).unwrap_or_default();
        let each = (0..groups.count).zip(&free).map(|(group, &free_bytes)| Each {
            group,
            free_bytes,
            can_be_placed_in: reached.contains(&group),
        });
        let each: Vec<Each> = each.collect();
        let emptiest = each.iter().rev().max_by_key(|each| each.free_bytes);
        let shown = Shown { emptiest: emptiest.map_or(0, |each| each.group), groups, each };
        match self.json {
            true => output::json(&shown)?,
            false => print(&shown)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(shown: &Shown) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["group", "free MiB", "used", "place init"]);
    for column in table.column_iter_mut().take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for each in &shown.each {
        let used =
            100 - each.free_bytes.min(shown.groups.group_bytes) * 100 / shown.groups.group_bytes;
        table.add_row([
            each.group.to_string(),
            (each.free_bytes >> 20).to_string(),
            format!("{used}%"),
            String::from(if each.can_be_placed_in { "reached" } else { "" }),
        ]);
    }
    say!("{table}")?;
    let unit = match shown.groups.unit {
        Unit::BlockGroup => String::from("block groups"),
        Unit::FlexGroup(groups) => format!("flex groups of {groups} block groups"),
        Unit::AllocationGroup => String::from("allocation groups"),
    };
    say!(
        "{} {unit} of {} MiB; the emptiest is {}",
        shown.groups.count,
        shown.groups.group_bytes >> 20,
        shown.emptiest
    )
}
