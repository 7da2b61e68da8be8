//! The benchmark of C-FFS.
fn main() {}
