//! `kestrel gateway`.

pub mod account;
pub mod attributes;
pub mod buckets;
pub mod conditions;
pub mod error;
pub mod listing;
pub mod object;
pub mod object_key;
pub mod uploads;
pub mod walk;
pub mod writer;
