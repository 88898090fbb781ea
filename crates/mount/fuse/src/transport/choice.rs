//! Which transport a session shall use.

use std::fmt;
use std::str::FromStr;

/// Over what requests and replies travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// io_uring where the kernel offers it, that is, where the administrator has switched it on;
    /// else the device.
    #[default]
    Auto,
    /// io_uring, or the session does not start.
    Uring,
    /// `/dev/fuse`.
    Device,
}

impl FromStr for TransportChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<TransportChoice, String> {
        match text {
            "auto" => Ok(TransportChoice::Auto),
            "uring" => Ok(TransportChoice::Uring),
            "device" => Ok(TransportChoice::Device),
            _ => Err(format!("{text:?} is no transport; auto, uring or device")),
        }
    }
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransportChoice::Auto => "auto",
            TransportChoice::Uring => "uring",
            TransportChoice::Device => "device",
        })
    }
}
