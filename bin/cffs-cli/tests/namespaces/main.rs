//! Tests that make mount namespaces, and so run one at a time, separately from other tests: a namespace
//! inherits every mount that exists when it is made, and keeps those volumes in use until it ends.

mod attached;
mod exclusive;
#[path = "../harness/mod.rs"]
mod harness;
mod keeping_word;
mod transports;
