use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::time::Duration;

use super::run;

// A killed server did not end: a thread of it waited for its own mount, and held /dev/fuse open.
#[test]
fn a_thread_apart_holds_no_descriptor_of_the_process() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let number = writer.as_raw_fd();
    let (go, wait) = mpsc::channel::<()>();
    let (say, heard) = mpsc::channel();
    let apart = std::thread::spawn(move || {
        run("apart", move || {
            say.send(std::fs::read_link(format!("/proc/thread-self/fd/{number}")).is_err())
                .expect("it listens");
            let _ = wait.recv();
            Ok(())
        })
    });
    assert!(heard.recv_timeout(Duration::from_secs(10)).expect("it runs"), "it has the pipe open");
    // The last writer's descriptor: the reader sees the end although the thread goes on.
    drop(writer);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).expect("the end of the pipe");
    drop(go);
    apart.join().expect("no panic").expect("it ends well");
}

#[test]
fn a_thread_apart_can_open_files_and_leaves_those_of_the_process_alone() {
    let mut file = File::open("/proc/self/comm").expect("open");
    let len = run("apart", || Ok(std::fs::read("/proc/self/comm")?.len())).expect("read");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("it is still open here");
    assert_eq!(text.len(), len);
}
