//! The comparison: measures every server on every disk, several times.
//!
//! Servers take turns in each repetition, each on a new volume, so that other load on the machine affects all
//! of them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::report::{Cell, Report};
use super::server::{Contender, Programs, Served};
use super::workload::{self, Load};
use crate::disk::Profile;
use crate::workload::Phase;
use crate::workload::catalog::Scale;

/// The servers and workloads of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The size of the load.
    pub scale: Scale,
    pub profiles: Vec<Profile>,
    pub repetitions: u32,
    /// The directory for the disks' data.
    pub scratch: PathBuf,
    pub programs: Programs,
}

impl Comparison {
    /// Runs the comparison.
    ///
    /// # Errors
    ///
    /// The first failure: a comparison without one of the servers is useless.
    pub fn run(&self, interrupt: &AtomicBool) -> Result<Report> {
        let mut cells = Vec::new();
        for repetition in 0..self.repetitions {
            for &profile in &self.profiles {
                for contender in Contender::ALL {
                    // On such a disk, making data durable takes no time.
                    if contender == Contender::GaneshaDirsync && !profile.has_write_cache() {
                        continue;
                    }
                    if interrupt.load(Ordering::Relaxed) {
                        bail!("interrupted; no report was written");
                    }
                    eprintln!(
                        "{}/{}: {contender} on {profile:?}",
                        repetition + 1,
                        self.repetitions
                    );
                    let phases = self
                        .run_one(contender, profile, repetition)
                        .with_context(|| format!("{contender} on {profile:?}"))?;
                    let cell = |(order, phase)| Cell { profile, order, contender, phase };
                    cells.extend(phases.into_iter().enumerate().map(cell));
                }
            }
        }
        let versions = vec![
            crate::peer::Peer::Cffs.version(&self.programs.cffs),
            self.programs.ganesha_version()?,
            crate::peer::Peer::Ext4.version(&self.programs.cffs),
        ];
        Ok(Report::new(self.scale, self.repetitions, versions, &cells))
    }

    fn run_one(
        &self,
        contender: Contender,
        profile: Profile,
        repetition: u32,
    ) -> Result<Vec<Phase>> {
        let load = match self.scale {
            Scale::Full => Load {
                files: 6000,
                phase_time_max: Duration::from_secs(2),
                seed: repetition.into(),
            },
            Scale::Quick => Load {
                files: 500,
                phase_time_max: Duration::from_millis(200),
                seed: repetition.into(),
            },
        };
        let mut served = Served::start(contender, &self.programs, profile, &self.scratch)?;
        let phases = workload::run(&mut served, load)?;
        served.stop()?;
        Ok(phases)
    }
}
