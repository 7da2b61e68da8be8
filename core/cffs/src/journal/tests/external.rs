//! A journal on a device of its own: a sync of one device orders nothing on the other, and either may fail
//! or be away for a while.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{
    HOME, Model, put, put_atomic, put_superblock, random, superblock_of, value_at, values,
};
use crate::device::{
    BlockDevice, Geometry, Image, JournalState, MemoryDevice, PairedDevice, VolatileDevice,
};
use crate::format::Superblock;
use crate::format::superblock::{self, JournalFlags};
use crate::journal::{JournaledDevice, medium};
use crate::mkfs::{self, MkfsOptions};
use crate::vfs::read_superblock;

/// An operation that the devices below the journal leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// A record, or a header, is not waited for on the device of the journal.
    JournalSync,
    /// Images are on their way home while the header calls the journal empty.
    HomeSync,
    /// The superblock does not say that the journal was given up.
    Flag,
}

/// Both devices, and the images that a crash could leave of them.
struct World {
    home: VolatileDevice,
    journal: VolatileDevice,
    state: Mutex<State>,
}

struct State {
    chance: u64,
    images: Vec<(Image, Image)>,
    mutant: Option<Missing>,
    is_atomic: bool,
    journal_fails: bool,
    elapsed: Duration,
}

impl World {
    /// A state that a crash could leave now: any possible state of each device, independent of the other.
    fn crash(&self) -> io::Result<(Image, Image)> {
        let next = || random(&mut self.state.lock().chance, 1 << 40);
        Ok((self.home.crash_seeded(next())?, self.journal.crash_seeded(next())?))
    }

    fn keep(&self) -> io::Result<()> {
        for _ in 0..3 {
            let images = self.crash()?;
            self.state.lock().images.push(images);
        }
        Ok(())
    }

    fn lacks(&self, missing: Missing) -> bool {
        self.state.lock().mutant == Some(missing)
    }
}

struct Home(Arc<World>);
struct Journal(Arc<World>);

impl BlockDevice for Home {
    fn geometry(&self) -> Geometry {
        self.0.home.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.home.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        let superblock = (offset == 0).then(|| {
            Superblock::decode(&bufs.iter().flat_map(|buf| buf.to_vec()).collect::<Vec<u8>>(), 0)
        });
        if let Some(Ok(mut superblock)) = superblock
            && self.0.lacks(Missing::Flag)
        {
            superblock.journal.flags.remove(JournalFlags::UNUSED);
            return put_superblock(&self.0.home, &superblock);
        }
        self.0.home.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.0.home.barrier()
    }

    fn sync(&self) -> io::Result<()> {
        self.0.keep()?;
        let is_lost = self.0.lacks(Missing::HomeSync) && self.0.state.lock().is_atomic;
        if is_lost { Ok(()) } else { self.0.home.sync() }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.home.discard(offset, len)
    }
}

impl BlockDevice for Journal {
    /// By chance, so that gaps are tried.
    fn elapsed(&self) -> Duration {
        let state = &mut *self.0.state.lock();
        state.elapsed += Duration::from_millis(random(&mut state.chance, 16));
        state.elapsed
    }

    fn geometry(&self) -> Geometry {
        self.0.journal.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.journal.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.keep()?;
        if self.0.state.lock().journal_fails {
            return Err(io::Error::other("the device of the journal fails"));
        }
        self.0.journal.write_at(offset, bufs)
    }

    fn barrier(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        self.0.keep()?;
        if self.0.state.lock().journal_fails {
            return Err(io::Error::other("the device of the journal fails"));
        }
        if self.0.lacks(Missing::JournalSync) { Ok(()) } else { self.0.journal.sync() }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.journal.discard(offset, len)
    }
}

fn made() -> (Image, Image) {
    let (home, journal) = (MemoryDevice::new(1 << 20), Arc::new(MemoryDevice::new(80 << 10)));
    let paired = PairedDevice::new(&home, Arc::clone(&journal) as Arc<dyn BlockDevice>);
    let options = MkfsOptions {
        cg_blocks: 256,
        uuid: Some([1; 16]),
        hash_seed: Some([2; 16]),
        ..MkfsOptions::default()
    };
    let made = mkfs::make(&paired, &options).expect("made");
    put_superblock(&home, &Superblock { state: superblock::State::InUse, ..made })
        .expect("written");
    (home.snapshot(), journal.snapshot())
}

type Paired = PairedDevice<Home>;

fn opened(world: &Arc<World>) -> Result<JournaledDevice<Paired>, String> {
    let paired = PairedDevice::new(Home(Arc::clone(world)), Arc::new(Journal(Arc::clone(world))));
    let superblock = read_superblock(&paired).map_err(|why| why.to_string())?;
    let medium = medium(&paired, &superblock).map_err(|why| why.to_string())?;
    match JournaledDevice::open_with(paired, medium, &superblock) {
        (device, None) => Ok(device),
        (_, Some(doubt)) => Err(doubt.to_string()),
    }
}

/// Whether a crash left what the model allows.
fn judge((home, journal): (Image, Image), before: &Model, after: &Model) -> Result<(), String> {
    let mounts = superblock_of(&home).mounts;
    let home = PairedDevice::new(
        MemoryDevice::from_image(home),
        Arc::new(MemoryDevice::from_image(journal)),
    );
    let superblock = read_superblock(&home).map_err(|why| why.to_string())?;
    let medium = medium(&home, &superblock).map_err(|why| why.to_string())?;
    let (device, doubt) = JournaledDevice::open_with(home, medium, &superblock);
    if let Some(doubt) = doubt {
        return Err(doubt.to_string());
    }
    let found = values(&device);
    match before.allows(&found, mounts) || after.allows(&found, mounts) {
        true => Ok(()),
        false => Err(format!("{found:?}, {mounts} mounts: neither {before:?} nor {after:?}")),
    }
}

/// Works at random on both devices, and tries crashes in each call and after it. Returns how many, and how
/// often the journal was given up.
fn run(seed: u64, mutant: Option<Missing>, calls: u64) -> Result<[usize; 2], String> {
    let (home, journal) = made();
    let world = Arc::new(World {
        home: VolatileDevice::new(home),
        journal: VolatileDevice::new(journal),
        state: Mutex::new(State {
            chance: seed,
            images: Vec::new(),
            mutant,
            is_atomic: false,
            journal_fails: false,
            elapsed: Duration::ZERO,
        }),
    });
    let mut device = opened(&world)?;
    let mut superblock = read_superblock(&device).expect("made");
    let mut model =
        Model { blocks: HOME.map(|_| vec![0]), mounts: vec![superblock.mounts], is_quiet: false };
    let (mut state, mut tried, mut given_up) = (seed, 0, 0);
    for value in 1..calls {
        let before = model.clone();
        let mut random = |limit| random(&mut state, limit) as usize;
        let call = random(12);
        world.state.lock().is_atomic = call < 5;
        match call {
            0..5 => {
                let chosen = 1 + random((1 << HOME.len()) - 1);
                let members = (0..HOME.len()).filter(|index| chosen >> index & 1 == 1);
                let members: Vec<usize> = members.collect();
                let blocks: Vec<u64> = members.iter().map(|index| HOME[*index]).collect();
                let mut changed = model.clone();
                members.iter().for_each(|index| changed.blocks[*index].push(value));
                changed.settle();
                if put_atomic(&device, &blocks, value).map_err(|why| why.to_string())? {
                    model = changed;
                } else if device
                    .journal()
                    .is_some_and(|journal| journal.stats().state == JournalState::Off)
                {
                    given_up += 1;
                    // The state at home is durable, and no part of the record is there.
                    let now = world.crash().expect("images");
                    judge(now, &model, &model).map_err(|why| format!("call {value}: {why}"))?;
                    tried += 1;
                }
            }
            5..8 => {
                let index = random(HOME.len() as u64);
                model.blocks[index].push(value);
                put(&device, HOME[index], value).expect("written");
            }
            8 => {
                superblock.mounts += 1;
                model.mounts.push(superblock.mounts);
                put_superblock(&device, &superblock).expect("written");
            }
            9 => {
                let fails = random(2) == 0;
                world.state.lock().journal_fails = fails;
            }
            10 => {
                device.sync().expect("synced");
                model.settle();
            }
            _ => device = opened(&world)?,
        }
        let images = std::mem::take(&mut world.state.lock().images);
        for images in images {
            judge(images, &before, &model).map_err(|why| format!("in call {value}: {why}"))?;
            tried += 1;
        }
        let now = world.crash().expect("images");
        judge(now, &model, &model).map_err(|why| format!("call {value}: {why}"))?;
        tried += 1;
        for (values, block) in model.blocks.iter().zip(HOME) {
            let found = value_at(&device, block);
            if values.last() != Some(&found) {
                return Err(format!("call {value}: block {block} has {found}, not {values:?}"));
            }
        }
    }
    Ok([tried, given_up])
}

#[test]
fn a_crash_of_two_devices_leaves_what_was_journaled_and_whole_records_only() {
    let runs = (0..12).map(|seed| run(seed, None, 150));
    let runs =
        runs.enumerate().map(|(seed, run)| run.unwrap_or_else(|why| panic!("{seed}: {why}")));
    let [tried, given_up] = runs.fold([0; 2], |sum, run| [sum[0] + run[0], sum[1] + run[1]]);
    assert!(tried > 5_000 && given_up > 20, "{tried}, {given_up}");
}

/// Each order between the two devices is needed: without it, a crash leaves a wrong state, which is detected.
#[test]
fn two_devices_without_one_of_the_rules_are_found_out() {
    for mutant in [Missing::JournalSync, Missing::HomeSync, Missing::Flag] {
        let caught = (0..16).any(|seed| run(seed, Some(mutant), 150).is_err());
        assert!(caught, "{mutant:?} was not found out");
    }
}
