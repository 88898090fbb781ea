//! The work of verbs: a serving process does it when it is asked, a verb does it by itself when no
//! process serves the volume.

pub mod compact;
pub mod dump;
pub mod fsck;
pub mod gc;
pub mod info;
pub mod settings;
pub mod status;
pub mod warmup;
pub mod whole;
