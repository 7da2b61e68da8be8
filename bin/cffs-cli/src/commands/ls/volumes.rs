//! The volumes below a place in an object store.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use cffs::clock::Timestamp;
use cffs::format::superblock::Holder;
use cffs::host::Standing;
use cffs_object::Location;
use cffs_object::volumes::{self, About, Found, InUse, Listing};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::output::{self, counted, name_for, note, printable};
use crate::{image, size};

/// The number of names that a message lists.
const NAMES_MAX: usize = 8;

/// Lists the volumes directly below a URL that names none itself, which was the error.
pub fn list(url: &Path, as_json: bool, none: anyhow::Error) -> anyhow::Result<ExitCode> {
    let Some(place) = image::location(url)?.filter(|place| place.version().is_none()) else {
        return Err(none);
    };
    let Listing { volumes, others } =
        volumes::list(&place).with_context(|| format!("listing {}", url.display()))?;
    if volumes.is_empty() {
        let url = url.display();
        return Err(match others.is_empty() {
            true if is_directory(&place) => anyhow!("no volume at {url}, nor directly below it"),
            true => none,
            false => anyhow!(
                "no volume at {url}, nor directly below it; there may be some below {}",
                in_short(&others)
            ),
        });
    }
    match as_json {
        true => {
            let mut out = output::stdout();
            for found in &volumes {
                writeln!(out, "{}", in_json(found))?;
            }
            out.flush()?;
        }
        false => print(&volumes)?,
    }
    let is_sealed =
        |found: &Found| matches!(&found.about, Ok(about) if about.in_use == InUse::Sealed);
    if !as_json && volumes.iter().any(is_sealed) {
        note!(
            "cffs ls: ? means unknown: without its key, an encrypted volume shows neither its size nor the \
             program that has it open for writing"
        );
    }
    if !others.is_empty() {
        note!("cffs ls: no volumes, but there may be some below them: {}", in_short(&others));
    }
    let mut failures =
        volumes.into_iter().filter_map(|found| Some((found.url, found.about.err()?)));
    let Some((url, error)) = failures.next() else { return Ok(ExitCode::SUCCESS) };
    failures.for_each(|(url, error)| {
        note!("cffs ls: {}: {error}", printable(url.as_bytes()));
    });
    Err(anyhow!(error).context(printable(url.as_bytes())))
}

/// Whether the place is a directory that exists.
fn is_directory(place: &Location) -> bool {
    place.volume_url().strip_prefix("file://").is_some_and(|path| Path::new(path).is_dir())
}

/// The first names of a list.
fn in_short(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(|name| printable(name.as_bytes()));
    let mut shown = shown.collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_MAX {
        shown += &format!(" and {}", counted((names.len() - NAMES_MAX) as u64, "other"));
    }
    shown
}

fn print(volumes: &[Found]) -> anyhow::Result<()> {
    let is_terminal = output::stdout_is_terminal();
    let mut rows = output::table();
    rows.set_header(["name", "size", "encrypted", "open for writing", "last change (UTC)"]);
    for found in volumes {
        let name = name_for(found.name.as_bytes(), is_terminal);
        let name = String::from_utf8_lossy(&name).into_owned();
        let unknown = || String::from("?");
        rows.add_row(match &found.about {
            Ok(about) => [
                name,
                about.size_bytes.map_or_else(unknown, size::show),
                String::from(if about.is_encrypted { "yes" } else { "no" }),
                state(about),
                about.changed.map_or_else(unknown, |at| time(at).to_string()),
            ],
            Err(_) => [name, unknown(), unknown(), unknown(), unknown()],
        });
    }
    output::print(&mut rows, usize::MAX)
}

/// The program that has a volume open for writing.
fn state(about: &About) -> String {
    match &about.in_use {
        _ if about.is_being_deleted => String::from("being deleted"),
        _ if about.is_complete == Some(false) => String::from("not completed"),
        InUse::No => String::from("no"),
        InUse::Sealed => String::from("?"),
        InUse::Yes(None) => String::from("yes"),
        InUse::Yes(Some((Holder { pid, name, .. }, standing))) => match standing {
            Standing::Foreign => format!("on {}, process {pid}", name.escape_ascii()),
            Standing::Gone => format!("not closed, process {pid} has ended"),
            _ => format!("on this host, process {pid}"),
        },
    }
}

fn time(at: SystemTime) -> Timestamp {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Timestamp { seconds: seconds.cast_signed(), nanoseconds: 0 }
}

fn in_json(found: &Found) -> Value {
    let (name, url) = (&found.name, &found.url);
    let about = match &found.about {
        Ok(about) => about,
        Err(error) => return json!({ "name": name, "url": url, "error": error.to_string() }),
    };
    let About { uuid, is_encrypted, is_being_deleted, is_complete, size_bytes, in_use, changed } =
        about;
    let (is_in_use, holder) = match in_use {
        InUse::No => (Some(false), None),
        InUse::Sealed => (None, None),
        InUse::Yes(holder) => (Some(true), holder.as_ref()),
    };
    let holder = holder.map(|(holder, standing)| {
        json!({
            "host": String::from_utf8_lossy(&holder.name),
            "pid": holder.pid,
            "since_seconds": holder.started,
            "has_ended": *standing == Standing::Gone,
        })
    });
    json!({
        "name": name,
        "url": url,
        "store_uuid": Uuid::from_bytes(*uuid).to_string(),
        "encrypted": is_encrypted,
        "being_deleted": is_being_deleted,
        "complete": is_complete,
        "size_bytes": size_bytes,
        "in_use": is_in_use,
        "in_use_by": holder,
        "changed_seconds": changed.map(|at| time(at).seconds),
    })
}
