//! The cost of a request by its size, and of unneeded bytes that it reads.

use anyhow::Result;

use super::{Plan, Table, in_words};
use crate::disk::profile::Spec;
use crate::disk::{Emulator, Nanos, Profile, Request, Run, SECTOR_SIZE, Stroke};
use crate::report::table::figure;
use crate::workload::random::Random;

/// The drives of table 1.
const TABLE_1: [Profile; 3] = [Profile::HpC3653a, Profile::Barracuda, Profile::AtlasIi];

const DISKS: [Profile; 6] = [
    Profile::St31200,
    Profile::HpC3653a,
    Profile::Barracuda,
    Profile::AtlasIi,
    Profile::Hdd7200,
    Profile::Nvme,
];

/// Bytes of the emulated volume, fewer than each disk has.
const SIZE: u64 = 512 << 20;

/// The time of a random read, by its size: figure 2.
pub fn service_time(plan: &Plan) -> Result<Vec<Table>> {
    let mut table = disks("request", |name| format!("{name}: ms"));
    let count = plan.pick(2_000, 100);
    for size in (9..=20).map(|shift| 1_u64 << shift) {
        let mut row = vec![in_words(size)];
        for profile in DISKS {
            let mut random = Random::new(plan.seed);
            let mut place = || random.below((SIZE - size) / SECTOR_SIZE) * SECTOR_SIZE;
            let reads: Vec<_> = (0..count).map(|_| (place(), size)).collect();
            row.push(figure(read(profile, &reads).as_ms() / count as f64));
        }
        table.rows.push(row);
    }
    Ok(vec![table, computed(), trend()])
}

/// Requests of 64 KiB and of 8 KiB on drives of several years, computed in the same way. The paper gives the
/// HP C2247 by comparison with the C3653: half as many sectors on a track, and an access a third longer.
fn trend() -> Table {
    let header = [
        "drive",
        "access: ms",
        "MB/s",
        "KiB in an access",
        "64 KiB / 8 KiB: average seek",
        "one cylinder",
    ];
    let mut table = Table::new(header, 1);
    let disks = TABLE_1.into_iter().chain([Profile::Hdd7200]);
    let drives = disks.map(|profile| {
        let Spec::Disk(drive) = profile.spec() else { unreachable!("{profile:?} has an arm") };
        let turn = 60e3 / drive.rpm;
        let access = [drive.seek_average_ms, drive.seek_single_ms].map(|seek| seek + turn / 2.0);
        (profile.name(), access, turn / (f64::from(drive.zones[0]) * SECTOR_SIZE as f64))
    });
    let drives: Vec<_> = drives.collect();
    let (_, access, byte) = &drives[0];
    let older = (String::from("hp-c2247"), access.map(|ms| ms * 4.0 / 3.0), byte * 2.0);
    for (name, access, byte) in [older].into_iter().chain(drives) {
        let ratio = |access: f64| (access + byte * 65536.0) / (access + byte * 8192.0);
        table.row([
            name,
            figure(access[0]),
            figure(1e-3 / byte),
            figure(access[0] / byte / 1024.0),
            figure(ratio(access[0])),
            figure(ratio(access[1])),
        ]);
    }
    table
}

/// The four curves of figure 2, computed as there: from table 1, without overheads, on an outer track.
fn computed() -> Table {
    let header =
        ["drive", "request", "average seek: ms", "immediate", "one cylinder: ms", "immediate"];
    let mut table = Table::new(header, 2);
    for profile in TABLE_1 {
        let Spec::Disk(drive) = profile.spec() else { unreachable!("{profile:?} has an arm") };
        let (turn, sectors) = (60e3 / drive.rpm, f64::from(drive.zones[0]));
        for size in [9, 13, 14, 16, 18, 20].map(|shift| 1_u64 << shift) {
            let turns = size as f64 / SECTOR_SIZE as f64 / sectors;
            let mut row = vec![profile.name(), in_words(size)];
            for seek in [drive.seek_average_ms, drive.seek_single_ms] {
                let usual = 0.5 + turns;
                // A head that arrives within the last track's part of the request has to return for its
                // beginning, and one that arrives elsewhere waits for it.
                let (whole, part) = (turns.floor(), turns.fract());
                let immediate =
                    whole + if part > 0.0 { 0.5 + part - part * part / 2.0 } else { 0.0 };
                row.extend([usual, immediate].map(|turns| figure(seek + turns * turn)));
            }
            table.rows.push(row);
        }
    }
    table.grouped()
}

/// Reads the files of a group with holes between them: the time to read them one by one, over the time to
/// read them in one request.
pub fn holes(plan: &Plan) -> Result<Vec<Table>> {
    const FILE: u64 = 4 << 10;
    const FILES: u64 = 16;
    let groups = plan.pick(100, 10);
    let mut table = disks("hole", |name| name.to_owned());
    for hole in (12..=23).map(|shift| 1_u64 << shift) {
        let mut row = vec![in_words(hole)];
        for profile in DISKS {
            let mut random = Random::new(plan.seed);
            let length = FILES * FILE + (FILES - 1) * hole;
            let mut place = || random.below((SIZE - length) / SECTOR_SIZE) * SECTOR_SIZE;
            let places: Vec<u64> = (0..groups).map(|_| place()).collect();
            let files = |place: &u64| {
                let place = *place;
                (0..FILES).map(move |i| (place + i * (FILE + hole), FILE))
            };
            let apart: Vec<_> = places.iter().flat_map(files).collect();
            let through: Vec<_> = places.iter().map(|place| (*place, length)).collect();
            row.push(figure(read(profile, &apart).as_ms() / read(profile, &through).as_ms()));
        }
        table.rows.push(row);
    }
    Ok(vec![table])
}

/// A table with a column for each disk.
fn disks(first: &str, column: impl Fn(&str) -> String) -> Table {
    let mut table = Table::new([first], 1);
    table.header.extend(DISKS.map(|disk| column(&disk.name())));
    table
}

/// Reads bytes at offsets one after the other on a disk at rest; returns the time that they take.
fn read(profile: Profile, reads: &[(u64, u64)]) -> Nanos {
    let mut disk = Emulator::new(profile, SIZE, Stroke::Whole);
    for &(offset, len) in reads {
        let id = disk.submit(Request::Read(Run::of_bytes(offset, len)), disk.now());
        let done = disk.complete(id);
        disk.advance(done);
    }
    disk.now()
}
