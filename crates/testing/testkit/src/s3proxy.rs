//! `kestrel-s3proxy`: a reverse proxy in front of an S3 store that fails on purpose, by rule and
//! seed.
//!
//! | file | |
//! | --- | --- |
//! | `server` | the proxy's listeners |
//! | `relay` | one client's connection, request by request to the store and back |
//! | `socket` | connections to clients and to the store |
//! | `http` | HTTP/1.1 messages: heads as they came, bodies by their framing |
//! | `kind` | what an S3 request asks for |
//! | `rule` | rules: which fault hits which requests |
//! | `plan` | which request is hit by which fault: a function of seed, rule and target |
//! | `classes` | storage classes and archives for a store that has none |
//! | `listing` | damage to the XML of a listing |
//! | `pace` | a limit on bytes a second that all connections share |
//! | `counts` | counters: requests by kind, faults by name, bytes |
//! | `control` | the control port: plain HTTP, one request per connection |
//!
//! It forwards HTTP/1.1 byte by byte (no header is changed, so signatures still verify) and
//! disturbs the requests that its rules choose: delays, errors, resets, answers lost after the
//! store did the work, bodies cut, lengthened or with wrong bytes, listings with pieces missing.
//! Which request is hit follows from the seed, the rule, the request's target and how often that
//! target was asked for: not from the order in which threads happen to run. It counts requests by
//! kind, which is how tests and benchmarks know what a workload really costs. Rules change and
//! counts are read over a control port.
//!
//! **Contract.** One thread per connection, at most [`server::CONNECTIONS_MAX`]; loopback only in
//! spirit: no TLS, no authentication of its own. Without rules it changes nothing of what is sent,
//! and adds no failure of its own beyond those of the store: a connection that the store has closed
//! is replaced before it is used again.

pub mod classes;
pub mod control;
pub mod counts;
pub mod http;
pub mod kind;
pub mod listing;
pub mod pace;
pub mod plan;
pub mod relay;
pub mod rule;
pub mod server;
pub mod socket;
