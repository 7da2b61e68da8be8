use rustix::mount::{MountFlags, UnmountFlags};

use super::*;

const LIST: &[u8] = b"25 1 254:0 / / rw,relatime - ext4 /dev/root ro
96 25 0:41 / /mnt/with\\040space ro,nosuid shared:5 - fuse.cffs /var/a ro_image rw,user_id=0
97 25 0:42 / /mnt/b rw,relatime - fuse.cffs /var/b ro,user_id=0
98 25 0:42 /d /mnt/with\\040space rw - fuse.cffs /var/b ro,user_id=0
99 25 0:4 / /proc rw - proc proc rw
";

#[test]
fn the_options_of_the_volume_count_and_not_those_of_one_mount() {
    let shown = |device| is_shown_read_only(LIST, device);
    assert_eq!(shown((254, 0)), Some(true));
    assert_eq!(shown((0, 41)), Some(false), "only this mount is read-only");
    assert_eq!(shown((0, 42)), Some(true));
    assert_eq!(shown((0, 4)), Some(false));
    assert_eq!(shown((0, 43)), None);
}

/// The list is read again as soon as the kernel reports a change.
#[test]
fn a_remount_is_seen_at_once() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("made");
    let mount = |flags| rustix::mount::mount("none", directory.path(), "tmpfs", flags, None);
    mount(MountFlags::empty()).expect("mounted");
    let state = MountState::of(None, directory.path(), false);
    let remount = |flags| rustix::mount::mount_remount(directory.path(), flags, "");
    let seen: Vec<bool> = (0..6)
        .map(|turn| {
            let flags = if turn % 2 == 0 { MountFlags::RDONLY } else { MountFlags::empty() };
            remount(flags).expect("remounted");
            assert_eq!(state.is_read_only(), state.is_read_only());
            state.is_read_only()
        })
        .collect();
    rustix::mount::unmount(directory.path(), UnmountFlags::empty()).expect("unmounted");
    assert_eq!(seen, [true, false, true, false, true, false]);
    assert!(!state.is_read_only(), "the list does not have it");
}

#[test]
fn the_last_mount_on_a_directory_is_found() {
    let device = |directory: &str| device_on(LIST, Path::new(directory));
    assert_eq!(device("/mnt/with space"), Some((0, 42)));
    assert_eq!(device("/mnt/b"), Some((0, 42)));
    assert_eq!(device("/mnt"), None);
}
