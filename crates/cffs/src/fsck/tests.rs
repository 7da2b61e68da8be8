//! Tests of fsck: volumes that the core wrote, volumes that a crash left, the corruption corpus.

mod volumes;
