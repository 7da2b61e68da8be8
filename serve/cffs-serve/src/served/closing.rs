//! Error messages of a server that could not write or close its volume.

use std::time::Duration;

use cffs::device::Failure;
use cffs::error::Error;
use cffs::vfs::Volume;

/// Why the volume could not be written, which changes are lost, and the command that helps. The caller
/// appends that command's argument, the volume's name.
pub(crate) fn failure(volume: &Volume, error: &Error) -> String {
    let why = volume.writer().health.latched().unwrap_or_else(|| error.to_string());
    let lost = match volume.writer().lost() {
        Some(since) => {
            format!("changes of the last {} that no fsync covered are lost", in_words(since))
        }
        None => String::from("no change is lost"),
    };
    let failure = volume.writer().health.latched_by().or(match error {
        Error::Io(error) => Some(Failure::of(error)),
        _ => None,
    });
    let cause = why.trim_start_matches("device error: ");
    match failure {
        Some(Failure::TakenOver) => {
            format!("{cause}; {lost}; when that program has closed the volume: cffs mount")
        }
        Some(Failure::Unreachable) => format!(
            "the volume could not be written ({cause}); {lost}; when it can be reached again, run cffs \
             fsck -p --take-over"
        ),
        Some(Failure::Restorable) => format!(
            "the volume could not be written ({cause}); {lost}; when the object is back, run cffs fsck -p \
             --take-over"
        ),
        Some(Failure::Medium) | None => format!(
            "writing to the device failed ({cause}); {lost}; fix the device, then run cffs fsck -p"
        ),
    }
}

fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{} s", seconds + 1),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}
