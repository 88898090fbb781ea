//! What the fuzz targets check.

mod checks;
mod envelopes;
mod handshake;

pub use checks::{message, stream};
pub use envelopes::envelope;
pub use handshake::handshake;
