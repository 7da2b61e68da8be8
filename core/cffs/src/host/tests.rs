use std::process::{Command, Stdio};

use super::*;

fn mark_of(pid: u32) -> Holder {
    let started = stat(&pid.to_string()).expect("it runs").started;
    Holder { pid, process_started: started, ..SystemHost.holder() }
}

#[test]
fn this_process_knows_its_own_mark() {
    let own = SystemHost.holder();
    assert_ne!(own.boot, [0; 16]);
    assert_ne!(own.host, [0; 16]);
    assert_ne!(own.process_started, 0);
    assert_eq!(own.pid, std::process::id());
    assert_eq!(SystemHost.standing(&own), Standing::Own);
}

/// A process that was killed and whose parent has not looked yet is gone as well.
#[test]
fn a_process_is_alive_until_it_ends() {
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("started");
    let mark = mark_of(child.id());
    assert_eq!(SystemHost.standing(&mark), Standing::Alive);
    let later = Holder { process_started: mark.process_started.wrapping_add(1), ..mark.clone() };
    assert_ne!(SystemHost.standing(&later), Standing::Alive, "its number was given to another");
    child.kill().expect("killed");
    let gone = || !matches!(SystemHost.standing(&mark), Standing::Alive);
    while !gone() {
        std::thread::yield_now();
    }
    child.wait().expect("ended");
    assert!(gone());
}

#[test]
fn another_boot_is_a_crash_and_another_host_is_not_known() {
    let own = SystemHost.holder();
    let rebooted = Holder { boot: [7; 16], ..own.clone() };
    assert_eq!(SystemHost.standing(&rebooted), Standing::Gone);
    let elsewhere = Holder { boot: [7; 16], host: [8; 16], ..own.clone() };
    assert_eq!(SystemHost.standing(&elsewhere), Standing::Foreign);
    // A container has a machine-id of its own, and the boot of its host.
    let container = Holder { host: [8; 16], ..own };
    assert_eq!(SystemHost.standing(&container), Standing::Own);
}

#[test]
fn the_name_of_a_process_may_look_like_more_of_the_line() {
    let line = "7 (a) Z 1) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4294967299 1 1";
    let stat = parse_stat(line).expect("it is one");
    assert!(!stat.is_dead);
    assert_eq!(stat.started, 3, "the lower 32 bits");
    assert!(parse_stat("7 (a) Z").is_none());
}

/// In a namespace of its own the process has another number for itself than the one that is seen here.
#[test]
#[ignore = "needs root, for a process namespace"]
fn a_process_in_a_namespace_below_is_seen() {
    let mut child = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "sleep", "60"])
        .spawn()
        .expect("started");
    let inner = loop {
        let found = fs::read_dir("/proc").expect("it is there").flatten().find_map(|process| {
            let name = process.file_name().to_str()?.to_owned();
            let status = fs::read_to_string(process.path().join("status")).ok()?;
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
            let is_child = parent.trim() == child.id().to_string();
            (is_child && innermost_pid(&name) == Some(1)).then_some(name)
        });
        match found {
            Some(name) => break name,
            None => std::thread::yield_now(),
        }
    };
    let mark = Holder { pid: 1, ..mark_of(inner.parse().expect("a number")) };
    assert_eq!(SystemHost.standing(&mark), Standing::Alive);
    child.kill().expect("killed");
    child.wait().expect("ended");
}
