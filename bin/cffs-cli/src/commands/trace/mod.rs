//! `cffs trace`: records which operations cause which device requests.

use std::process::ExitCode;

use clap::{Args, Subcommand};

mod recording;
#[cfg(test)]
mod tests;

/// Record which operations of which programs cause which requests of the device
///
/// Every request of the device is assigned to the operations that caused it: a read to the call that missed
/// the cache or caused the read-ahead, a write to all calls that changed its blocks, each with its share.
/// This includes writes that happen much later, and those of blocks from the journal to their places. The
/// shares of all operations add up to the requests of the device. A flush, the superblock and bitmaps belong
/// to the operation that writes them: an fsync, a sync, or the volume's background.
///
/// `record` fetches the trace from the server of a volume, mounted or served, while it is used; for root and
/// the user whose server it is. Events that it does not fetch in time are lost; the trace contains their
/// number. Calls of NFS clients belong to no process of this machine, and are shown as the volume's own.
///
/// A trace is JSON in the Trace Event Format, one event on each line. ui.perfetto.dev shows it as a
/// timeline, with arrows from operations to the requests that they caused; `jq` and other programs sum
/// it up. The events of requests (`"cat": "request"`) have in `args` the first byte, the length, the way
/// (direct, read-ahead, write-back, journal, drain), and the shares by operation and process.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs trace record -o make.json mnt -- make -C mnt/src    while a command runs
  cffs trace record -o all.json mnt                        until it is interrupted
  cffs trace record -o nfs.json tree.cffs                  a volume that cffs serve serves
  cffs trace record --listen 10.0.0.1:7070 mnt             on the machine that is measured
  cffs trace fetch -o far.json 10.0.0.1:7070               on another machine

Requests of the device by operation, with the share of each operation:
  jq -r '.[] | select(.cat == \"request\") | .name as $r | .args.shares | to_entries[] |
  \"\\(.key) \\($r) \\(.value)\"' make.json |
  awk '{ s[$1 \" \" $3] += $4 } END { for (k in s) print s[k], k }' | sort -rn")]
pub struct Trace {
    /// The command.
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Record the operations and requests of a mounted or served volume.
    Record(recording::RecordTrace),
    /// Fetch a trace from a `record --listen` on another machine.
    Fetch(recording::Fetch),
}

impl Trace {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            TraceCommand::Record(command) => command.run(),
            TraceCommand::Fetch(command) => {
                command.run()?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}
