//! The work of verbs that a serving process does when it is asked, and that a verb does itself
//! where nobody serves the volume.

pub mod compact;
pub mod dump;
pub mod fsck;
pub mod gc;
pub mod info;
pub mod settings;
pub mod status;
pub mod warmup;
pub mod whole;
