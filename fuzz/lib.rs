//! What the fuzz targets check.

mod checks;
mod envelopes;

pub use checks::{message, stream};
pub use envelopes::envelope;
