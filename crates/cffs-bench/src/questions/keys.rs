//! By what files should lie together, if not by their directories: hints, and other keys.

use anyhow::{Result, bail};
use cffs::format::superblock::Policy;

use super::{Findings, Plan, Repeats, Table};
use crate::disk::Profile;
use crate::library::documents::{Made, PARTS};
use crate::library::keys::{COMMON, VALUES};
use crate::peer::Peer;
use crate::report::table::figure;

/// Documents whose parts lie in many directories, with hints and without.
pub fn hints(plan: &Plan) -> Result<Findings> {
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
    let mut table = Table::new(header, 2).repeats(Repeats::Nearly);
    let library = plan.library(Profile::Hdd7200, plan.pick(512 << 20, 128 << 20));
    let (documents, reads) = (plan.pick(600, 100), plan.pick(300, 50));
    let variants = [
        ("conventional", (Peer::CffsPlain, Policy::Scattered), false),
        ("C-FFS without grouping", (Peer::Cffs, Policy::None), false),
        ("C-FFS, by directory", (Peer::Cffs, Policy::Directory), false),
        ("C-FFS, by hint", (Peer::Cffs, Policy::Directory), true),
    ];
    let mut found = Vec::new();
    for (order, made) in [("whole", Made::Whole), ("part by part", Made::PartByPart)] {
        for (name, volume, hinted) in variants {
            let phases = library.documents(volume, (made, hinted), (documents, reads))?;
            let [alone, many, scan] = &phases[..] else { bail!("three phases") };
            let all = scan.device.unwrap_or_default().requests();
            found.push((alone.requests_per_file().unwrap_or_default(), many.files_per_sec(), all));
            table.row([
                order.to_owned(),
                name.to_owned(),
                figure(alone.requests_per_file().unwrap_or_default()),
                figure(alone.files_per_sec()),
                figure(many.requests_per_file().unwrap_or_default()),
                figure(many.files_per_sec()),
                all.to_string(),
                figure(scan.seconds),
            ]);
        }
    }
    let [_, _, directory, hint, _, _, late_directory, late_hint] = found[..] else {
        bail!("eight rows")
    };
    let alone = hint.0 * 1.1 < directory.0 && late_hint.0 * 1.1 < late_directory.0;
    let many = hint.1 > directory.1 * 1.1 && late_hint.1 > late_directory.1 * 1.1;
    let (verdict, why) = match (alone, many) {
        (true, true) => ("Yes", ""),
        (true, false) => (
            "For a document alone, not yet for many",
            " The files do lie together; what spoils it is read-ahead, which follows directories (decision \
             005): who reads many documents has files read ahead that lie with other documents.",
        ),
        _ => ("No", ""),
    };
    Ok(Findings {
        how: format!(
            "{documents} documents of {PARTS} files each, which lie in 20 directories at random, are made \
             whole, one after the other; or part by part, as a site grows. Counted are the requests for \
             their contents: of twenty documents, each alone from cold caches; for each of {reads} in random \
             order, with a cache of 16 MiB; and all requests of a cold scan of the directories. A hint is \
             the extended attribute `user.cffs.key`: files with the same value lie together. Disk: `hdd7200`."
        ),
        tables: vec![table.grouped()],
        charts: Vec::new(),
        verdict: verdict.to_owned(),
        answer: format!(
            "With a hint, a document that was made whole takes {} requests in place of {}, and one that was \
             made part by part {} in place of {}. A reader of many documents gets {} and {} times as many of \
             them in a second as by directory. A scan of all directories takes {} requests in place of \
             {}.{why}",
            figure(hint.0),
            figure(directory.0),
            figure(late_hint.0),
            figure(late_directory.0),
            figure(hint.1 / directory.1),
            figure(late_hint.1 / late_directory.1),
            hint.2,
            directory.2,
        ),
    })
}

/// The policies of `cffs mkfs --policy` that have a key.
const KEYS: [Policy; 4] = [Policy::Directory, Policy::Owner, Policy::Time, Policy::Process];

/// Files of several owners, processes and minutes, by each of the keys.
pub fn policies(plan: &Plan) -> Result<Findings> {
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
    let mut shares = Vec::new();
    // What its own key takes, and what the directory takes for the same files.
    let mut own = Vec::new();
    let mut by_directory = Vec::new();
    for (i, policy) in KEYS.into_iter().enumerate() {
        let (layout, phases) = library.keyed(policy, files)?;
        let share = layout.of_one_key as f64 / layout.neighbours.max(1) as f64;
        let requests: Vec<u64> =
            phases.iter().map(|phase| phase.device.unwrap_or_default().requests()).collect();
        let [directory, owner, minute, process] = requests[..] else { bail!("four phases") };
        table.row([
            policy.name().to_owned(),
            layout.neighbours.to_string(),
            layout.of_one_key.to_string(),
            format!("{:.1}%", share * 100.0),
            directory.to_string(),
            owner.to_string(),
            minute.to_string(),
            process.to_string(),
        ]);
        shares.push(share);
        own.push(requests[i]);
        if policy == Policy::Directory {
            by_directory = requests;
        }
    }
    let least = shares.iter().copied().fold(1.0, f64::min);
    let pairs = || own.iter().zip(&by_directory).zip(COMMON).skip(1);
    let gains = pairs().map(|((own, other), name)| format!("by {name} {own} in place of {other}"));
    let all_gain = pairs().all(|((own, other), _)| own < other);
    let verdict = match (least >= 0.9, all_gain) {
        (true, true) => "Each one, for what is read by it",
        (true, false) => "Not all of them",
        _ => "Not as they are",
    };
    Ok(Findings {
        how: format!(
            "{files} files are made in {VALUES} minutes; each has one of {VALUES} directories, owners and \
             processes at random, and an epoch has 40 of them. `cffs layout` counts the pairs of files that \
             follow each other on the device, and those that share the key of the policy. Then the files of \
             one directory, of one owner, of one minute, of one process are read cold, in the order in which \
             they were made. Disk: `hdd7200`."
        ),
        tables: vec![table],
        charts: Vec::new(),
        verdict: verdict.to_owned(),
        answer: format!(
            "With each policy, at least {:.1}% of neighbours share its key. Files that are read by what they \
             have in common take fewer requests when they lie so: {}, which is what a volume that is grouped \
             by directory takes. What is read in another way pays for it, as the other columns show.",
            least * 100.0,
            gains.collect::<Vec<_>>().join(", "),
        ),
    })
}
