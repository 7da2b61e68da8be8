//! Keys other than the directory by which files can be stored together: hints, owners, minutes, processes.

use anyhow::{Context, Result, bail};
use cffs::format::superblock::Policy;

use super::{Plan, Table};
use crate::disk::Profile;
use crate::library::documents::{self, Known, Made};
use crate::library::keys;
use crate::peer::Peer;
use crate::report::table::figure;
use crate::workload::Phase;

/// Documents whose parts are in many directories, with hints and without, and regrouped by reads.
pub fn hints(plan: &Plan) -> Result<Vec<Table>> {
    let header = [
        "made",
        "",
        "alone",
        "documents/s",
        "of many",
        "documents/s",
        "all directories",
        "seconds",
    ];
    let mut table = Table::inexact(header, 2);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 128 << 20));
    let (documents, reads) = (plan.pick(600, 100), plan.pick(300, 50));
    let variants = [
        ("conventional", (Peer::CffsPlain, Policy::Scattered), Known::No),
        ("C-FFS without grouping", (Peer::Cffs, Policy::None), Known::No),
        ("C-FFS, by directory", (Peer::Cffs, Policy::Directory), Known::No),
        ("C-FFS, by hint", (Peer::Cffs, Policy::Directory), Known::Hint),
        ("C-FFS, by list", (Peer::Cffs, Policy::Directory), Known::List),
        ("C-FFS, by use", (Peer::Cffs, Policy::Directory), Known::Use),
    ];
    for (order, made) in [("whole", Made::Whole), ("part by part", Made::PartByPart)] {
        for (name, volume, known) in variants {
            let phases = documents::measure(&library, volume, (made, known), (documents, reads))?;
            let [alone, many, scan] = &phases[..] else { bail!("three phases") };
            table.row([
                order.to_owned(),
                name.to_owned(),
                figure(alone.requests_per_file().unwrap_or_default()),
                figure(alone.files_per_sec()),
                figure(many.requests_per_file().unwrap_or_default()),
                figure(many.files_per_sec()),
                scan.device.unwrap_or_default().requests().to_string(),
                figure(scan.seconds),
            ]);
        }
    }
    Ok(vec![table.grouped()])
}

/// The policies of `cffs mkfs --policy` that have a key.
const KEYS: [Policy; 4] = [Policy::Directory, Policy::Owner, Policy::Time, Policy::Process];

/// Files of several owners, processes and minutes, stored by each of the keys.
pub fn policies(plan: &Plan) -> Result<Vec<Table>> {
    let header = [
        "policy",
        "neighbours",
        "of one key",
        "share",
        "requests: a directory",
        "an owner",
        "a minute",
        "a process",
    ];
    let mut table = Table::new(header, 1);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
    let files = plan.pick(6_400, 640);
    for policy in KEYS {
        let (layout, phases) = keys::measure(&library, policy, files)?;
        let [directory, owner, minute, process] = &phases[..] else { bail!("four phases") };
        let share = layout.of_one_key as f64 / layout.neighbours.max(1) as f64;
        let [directory, owner, minute, process] = [directory, owner, minute, process]
            .map(|phase| phase.device.unwrap_or_default().requests().to_string());
        table.row([
            policy.name().to_owned(),
            layout.neighbours.to_string(),
            layout.of_one_key.to_string(),
            format!("{:.1}%", share * 100.0),
            directory,
            owner,
            minute,
            process,
        ]);
    }
    Ok(vec![table])
}

/// Files stored by directory, and in the order of writing, as in a log.
pub fn log_order(plan: &Plan) -> Result<Vec<Table>> {
    let header = [
        "made",
        "placed",
        "created: s",
        "writes",
        "read as made: s",
        "requests",
        "by directory: s",
        "requests",
        "one directory: s",
        "requests",
    ];
    let mut table = Table::new(header, 2);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 64 << 20));
    let rate = library.profile.streaming_rate().context("the disk streams")?;
    for (made, alternately) in [("one after the other", false), ("alternately", true)] {
        let mut bytes = 0;
        for (placed, policy) in
            [("by directory", Policy::Directory), ("in the order of writing", Policy::Time)]
        {
            let phases = keys::in_two_orders(&library, policy, plan.pick(6_400, 640), alternately)?;
            let [created, reads @ ..] = &phases[..] else { bail!("no phases") };
            bytes = created.bytes;
            let requests = |phase: &Phase| phase.device.unwrap_or_default().requests().to_string();
            let writes = created.device.unwrap_or_default().writes.to_string();
            let mut row = vec![made.to_owned(), placed.to_owned(), figure(created.seconds), writes];
            row.extend(reads.iter().flat_map(|phase| [figure(phase.seconds), requests(phase)]));
            table.rows.push(row);
        }
        let mut row = vec![made.to_owned(), String::from("contents alone, streamed")];
        let all = bytes as f64 / rate;
        let streamed = [all, all, all, all / keys::VALUES as f64];
        row.extend(streamed.into_iter().flat_map(|secs| [figure(secs), String::from("-")]));
        table.rows.push(row);
    }
    Ok(vec![table.grouped()])
}
