//! The control socket of a disk that is served to others.
//!
//! A command is a line, and so is its answer:
//!
//! ```text
//! counters      {"reads":123,…}
//! profile NAME  ok                       changes the device; counting continues
//! profile       hdd7200
//! cut SEED      {"unsynced_writes":7,…}  loses some unflushed writes, if the media are volatile
//! ```

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::media::Media;
use super::pacer::Pacer;
use crate::disk::Profile;

/// Listens at `path`, which must not exist, and answers until the process ends.
pub fn listen(path: &Path, pacer: Arc<Pacer>, media: Arc<Media>) -> Result<()> {
    let listener = UnixListener::bind(path)
        .with_context(|| format!("make the control socket {}", path.display()))?;
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (pacer, media) = (pacer.clone(), media.clone());
            // A client that disconnects ends only its own connection.
            std::thread::spawn(move || converse(&stream, &pacer, &media));
        }
    })?;
    Ok(())
}

/// Sends a command to a served disk and returns its answer.
pub fn ask(path: &Path, command: &str) -> Result<String> {
    let mut stream =
        UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
    writeln!(stream, "{command}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

fn converse(stream: &UnixStream, pacer: &Pacer, media: &Media) -> std::io::Result<()> {
    let mut writer = stream;
    for line in BufReader::new(stream).lines() {
        writeln!(writer, "{}", answer(&line?, pacer, media))?;
    }
    Ok(())
}

pub fn answer(line: &str, pacer: &Pacer, media: &Media) -> String {
    let mut words = line.split_whitespace();
    match (words.next(), words.next()) {
        (Some("counters"), None) => serde_json::to_string(&pacer.counters())
            .unwrap_or_else(|error| format!("error: {error}")),
        (Some("profile"), None) => pacer.profile().name(),
        (Some("profile"), Some(name)) => match Profile::from_str(name, true) {
            Ok(profile) => {
                pacer.become_profile(profile);
                String::from("ok")
            }
            Err(error) => format!("error: {error}"),
        },
        (Some("cut"), Some(seed)) => match seed.parse() {
            Ok(seed) => match media.cut_power(seed) {
                Ok(cut) => serde_json::to_string(&cut).unwrap_or_else(|e| format!("error: {e}")),
                Err(error) => format!("error: {error:#}"),
            },
            Err(error) => format!("error: the seed {seed}: {error}"),
        },
        _ => String::from("error: the commands are `counters`, `profile [NAME]` and `cut SEED`"),
    }
}
