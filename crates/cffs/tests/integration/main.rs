//! Tests of the core by its public interface, on devices in memory. They are one program, because each test
//! program links the whole core. Tests that replace the allocator, and the long searches for faults, are
//! programs of their own.

mod blocks_shown;
mod bulk;
mod clean_points;
mod clusters;
mod conditions;
mod copy;
mod cost;
mod crash_random;
mod damage_seen;
mod damaged;
mod decoder;
mod discard;
mod early;
mod fast_fsck;
mod fsck_faults;
mod fsync;
mod full;
mod full_random;
mod golden;
mod grow;
mod in_flight;
mod journal;
mod limits;
mod listing;
mod locks;
mod lost_journal;
mod lost_writes;
mod mark;
mod online;
mod placement;
mod protect;
mod reserve;
mod safeguards;
mod scrub;
mod setup;
mod throttle;
mod tune;
mod unreachable;
mod walk;
