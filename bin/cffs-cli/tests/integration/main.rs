//! Tests of the program by its command line. They form one test program, because each test program links the
//! whole core.
//!
//! Tests that make mount namespaces are in `tests/namespaces`.

mod administration;
mod advice;
mod attached;
mod attached_files;
mod attached_reading;
mod attached_rights;
mod background;
mod changes;
mod cloning;
mod clouds;
mod compression;
mod copying;
mod crash_report;
mod damaged_objects;
mod encryption;
#[path = "../exposition/mod.rs"]
mod exposition;
mod failing_device;
mod failing_image;
mod following;
#[path = "../harness/mod.rs"]
mod harness;
mod hostile_names;
mod image;
mod layout;
mod listings;
mod lost_objects;
mod mount;
mod names;
mod object_store;
mod other_users;
mod outages;
mod piping;
mod publishing;
mod quotas;
mod read_only;
mod regroup;
mod regroup_used;
mod restarting;
mod restarting_served;
mod restarting_stored;
mod serving;
mod staging;
mod volumes;
