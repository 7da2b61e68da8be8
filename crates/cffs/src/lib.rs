//! The co-locating fast file system.
