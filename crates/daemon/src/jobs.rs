//! The work of verbs: a serving process does it when it is asked, a verb does it by itself when no
//! process serves the volume.
//!
//! | file | what it has |
//! | --- | --- |
//! | `jobs/status.rs` | `kestrel status` |
//! | `jobs/info.rs` | `kestrel info` |
//! | `jobs/usage.rs` | `kestrel du` |
//! | `jobs/settings.rs` | `kestrel config` |
//! | `jobs/fsck.rs` | `kestrel fsck` of a volume in use |
//! | `jobs/gc.rs` | `kestrel gc` |
//! | `jobs/compact.rs` | `kestrel compact` |
//! | `jobs/tiers.rs` | `kestrel tier` |
//! | `jobs/dump.rs` | `kestrel dump` |
//! | `jobs/warmup.rs` | `kestrel warmup` |
//! | `jobs/whole.rs` | `kestrel warmup --whole` |

pub mod compact;
pub mod dump;
pub mod fsck;
pub mod gc;
pub mod info;
pub mod settings;
pub mod status;
pub mod tiers;
pub mod usage;
pub mod warmup;
pub mod whole;
