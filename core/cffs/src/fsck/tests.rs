//! Tests of fsck: volumes that the core wrote, volumes that a crash left, the corruption corpus.

mod corpus;
mod damage;
mod document;
mod forged;
mod image;
mod loss;
mod random;
mod salvage;
mod used;
mod volumes;
