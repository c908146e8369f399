//! The journal keeps what it promises: on a disk that crashes, on one that fails, and on the real one.

mod alone;
mod blobs;
mod common;
mod counts;
mod crash;
mod damage;
mod faults;
mod frames;
mod full;
mod import;
mod prune;
mod readers;
mod real;
mod recovery;
