//! Clones of trees that are damaged, or that change meanwhile.

use std::ops::ControlFlow;

use super::files;
use crate::error::{Corruption, Error};
use crate::files::{CloneError, CloneStep, Cloned, Files, clone_tree};
use crate::inode::VnodeGuard;
use crate::units::InodeNo;
use crate::vfs::Caller;

fn ino(files: &Files, path: &str) -> InodeNo {
    files.stat(path).expect("found").ino
}

fn set_parent(files: &Files, dir: InodeNo, parent: InodeNo) {
    let vnode = files.volume().inodes().get(dir).expect("loaded");
    VnodeGuard::new(&vnode).inode.parent = parent;
}

/// Regression: the search for the source above the new directory had no end.
#[test]
fn a_clone_below_a_loop_of_parents_fails() {
    let files = files();
    files.make_dir_all("/outer/inner").expect("made");
    files.write("/file", b"contents").expect("written");
    let (outer, inner) = (ino(&files, "/outer"), ino(&files, "/outer/inner"));
    set_parent(&files, outer, inner);
    let failed = files.clone_tree("/file", "/outer/inner/copy").expect_err("a loop");
    set_parent(&files, outer, InodeNo::ROOT);
    let CloneError::Failed { error, .. } = failed else { panic!("{failed}") };
    assert!(matches!(error, Error::Corruption(Corruption::Loop { .. })), "{error}");
    files.clone_tree("/file", "/outer/inner/copy").expect("cloned");
}

/// Regression: a file was read that had the number of one that was listed.
#[test]
fn a_clone_reads_no_other_file_with_the_number_of_one_that_was_listed() {
    let files = files();
    files.make_dir_all("/tree").expect("made");
    for name in ["1", "2"] {
        files.write(format!("/tree/{name}"), b"contents").expect("written");
    }
    let second = files.volume().inodes().get(ino(&files, "/tree/2")).expect("loaded");
    let mut watch = |step: CloneStep<'_>, _: &Cloned| {
        if matches!(step, CloneStep::Entry(_, b"1", _)) {
            // Like another file that was given the number.
            VnodeGuard::new(&second).inode.generation += 1;
        }
        ControlFlow::Continue(())
    };
    let (source, root) = (files.node("/tree").expect("found"), files.node("/").expect("found"));
    let failed = clone_tree(&Caller::ROOT, &|_, _, _| true, &source, &root, b"copy", &mut watch);
    VnodeGuard::new(&second).inode.generation -= 1;
    let failed = failed.expect_err("another file");
    let CloneError::Failed { path, error: Error::Stale } = &failed else { panic!("{failed}") };
    assert_eq!(path, b"2");
    files.read("/copy/2").expect_err("not copied");
}
