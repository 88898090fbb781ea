//! A client of a volume that several nodes serve.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client;
mod cluster;
mod mounting;
mod outages;
mod routes;
mod tables;
