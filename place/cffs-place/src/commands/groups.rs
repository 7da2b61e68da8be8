//! `place groups`: the groups of a volume and their contents.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::output::{self, say};
use cffs_place::groups::{Groups, Unit};
use cffs_place::room;
use cffs_place::shadow::Shadow;

/// Show the groups of a volume, and the emptiest one
///
/// Group 0 is the outermost of a disk. After place init, it also says which groups can be placed in.
#[derive(Debug, Args)]
#[command(name = "groups", after_help = EXAMPLES)]
pub struct ShowGroups {
    /// A directory on the volume.
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Also find the largest file that could be placed in each group now, by allocating it for a moment.
    /// Needs place init.
    #[arg(long)]
    largest: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  place groups /srv
  place groups --largest /srv
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
    /// The size of the largest file, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_bytes: Option<u64>,
}

impl ShowGroups {
    /// Reads the groups and prints them.
    pub fn run(self) -> Result<ExitCode> {
        let groups = Groups::of(&self.directory)?;
        let free = groups.free_bytes(&self.directory)?;
        let shadow = match (Shadow::find(&self.directory.join("any")), self.largest) {
            (Err(error), true) => return Err(error),
            (shadow, _) => shadow.ok(),
        };
        let mut each = Vec::new();
        for (group, &free_bytes) in (0..groups.count).zip(&free) {
            let reached = shadow.as_ref().filter(|shadow| shadow.directory(group).is_ok());
            let largest_bytes = match (reached, self.largest) {
                (Some(shadow), true) => Some(room::largest(shadow, group)?),
                _ => None,
            };
            let can_be_placed_in = reached.is_some();
            each.push(Each { group, free_bytes, can_be_placed_in, largest_bytes });
        }
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
    let with_largest = shown.each.iter().any(|each| each.largest_bytes.is_some());
    let mut header = vec!["group", "free MiB", "used", "place init"];
    header.extend(with_largest.then_some("largest MiB"));
    table.load_preset(presets::NOTHING).set_header(header);
    for (number, column) in table.column_iter_mut().enumerate() {
        if number != 3 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for each in &shown.each {
        let used =
            100 - each.free_bytes.min(shown.groups.group_bytes) * 100 / shown.groups.group_bytes;
        let mut row = vec![
            each.group.to_string(),
            (each.free_bytes >> 20).to_string(),
            format!("{used}%"),
            String::from(if each.can_be_placed_in { "reached" } else { "" }),
        ];
        row.extend(each.largest_bytes.map(|bytes| (bytes >> 20).to_string()));
        table.add_row(row);
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
