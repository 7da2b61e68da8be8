//! The whole path of making changes durable: from the system call through the kernel and the adapter to the
//! device's flush, for every kind of change and over each transport.
//!
//! The volume is mounted on a device in memory that forgets unflushed writes, and nothing is written to the
//! device unless a call requests it. So a case shows both: without the call the change is lost, and after the
//! call it survives, even if the device kept nothing else.

mod aio;
mod cases;
mod direct;
mod mount;

use std::fs;
use std::path::Path;

use cases::{CASES, Call, Case};
use mount::{Mount, Transport};

const MIB: u64 = 1 << 20;

fn make_durable(dir: &Path, call: Call) {
    let open = |path: &str| fs::File::open(dir.join(path)).expect("opened");
    match call {
        Call::Fsync(path) => open(path).sync_all().expect("synced"),
        Call::Fdatasync(path) => open(path).sync_data().expect("synced"),
        Call::Nothing => {}
    }
}

/// Runs a case with one call; returns the fault, if any.
fn run(mount: &Mount, case: &Case, call: Call, number: usize) -> Result<(), &'static str> {
    let at = format!("/{number}");
    let dir = mount.root().join(&at[1..]);
    fs::create_dir(&dir).expect("made");
    (case.before)(&dir);
    mount.volume().sync().expect("synced");
    let has = || (case.has)(&mount.after_a_power_cut(), &at);
    if has() {
        return Err("it is there before");
    }
    let flushes = mount.counts().syncs;
    (case.change)(&dir);
    if call != Call::Nothing {
        if mount.counts().syncs != flushes {
            return Err("it flushes the device unasked");
        }
        if has() {
            return Err("it is durable unasked");
        }
        make_durable(&dir, call);
    }
    if mount.counts().syncs == flushes {
        return Err("no flush reached the device");
    }
    if !has() {
        return Err("it is lost");
    }
    // A second call finds nothing left to write.
    let written = mount.counts();
    make_durable(&dir, call);
    let now = mount.counts();
    if (now.writes, now.syncs) != (written.writes, written.syncs) {
        return Err("a second call writes again");
    }
    Ok(())
}

fn every_case(transport: Transport) {
    let Some(mount) = Mount::new(transport, 64 * MIB) else { return };
    let calls = CASES.iter().flat_map(|case| case.calls.iter().map(move |call| (case, *call)));
    let wrong: Vec<String> = calls
        .enumerate()
        .filter_map(|(number, (case, call))| {
            let outcome = run(&mount, case, call, number);
            outcome.err().map(|what| format!("{}, {call:?}: {what}", case.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn durable_changes_survive_a_power_cut_over_dev_fuse() {
    every_case(Transport::Dev);
}

#[test]
fn durable_changes_survive_a_power_cut_over_rings() {
    every_case(Transport::Rings);
}
