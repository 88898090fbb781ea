//! Bodies that are XML.

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use xml::reader::{EventReader, XmlEvent};

use crate::body::RequestBody;

/// Longest body, bytes.
const BYTES_MAX: usize = 64 << 10;

/// Most elements within each other. The protocol library descends into them by recursion.
const DEPTH_MAX: usize = 64;

/// What a client is told instead of an answer.
pub type Refusal = (StatusCode, &'static str);

/// Reads a body and checks its limits. That a body is there that the method has no use for, or no
/// XML, is for the protocol library to say.
///
/// # Errors
/// If it is too long, nested too deeply, or ends early.
pub async fn read(mut body: RequestBody) -> Result<Bytes, Refusal> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| (StatusCode::BAD_REQUEST, "the body of the request ends early\n"))?;
        let Ok(bytes) = frame.into_data() else { continue };
        if whole.len() + bytes.len() > BYTES_MAX {
            let why = "a request of this kind has a body of at most 64 KiB\n";
            return Err((StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        whole.extend_from_slice(&bytes);
    }
    if is_deep(&whole) {
        let why = "the body has more than 64 elements within each other\n";
        return Err((StatusCode::BAD_REQUEST, why));
    }
    Ok(whole.freeze())
}

/// Whether elements are nested too deeply, as far as it is XML.
fn is_deep(text: &[u8]) -> bool {
    let mut depth = 0usize;
    for event in EventReader::new(text) {
        match event {
            Ok(XmlEvent::StartElement { .. }) => depth += 1,
            Ok(XmlEvent::EndElement { .. }) => depth = depth.saturating_sub(1),
            Ok(_) => {}
            Err(_) => return false,
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depth is counted by elements, whatever looks like their ends.
    #[test]
    fn depth_of_elements() {
        let nested = |begin: &str, depth: usize| begin.repeat(depth);
        assert!(!is_deep(nested("<a>", DEPTH_MAX).as_bytes()));
        for begin in ["<a>", "<a b='/>'>", "<a><!-- </a> -->", "<a><![CDATA[</a>]]>"] {
            assert!(is_deep(nested(begin, DEPTH_MAX + 1).as_bytes()), "{begin}");
        }
        assert!(!is_deep(nested("<b/>", 1000).as_bytes()) && !is_deep(b"\xff") && !is_deep(b""));
        assert!(!is_deep(format!("<a>{}</a>", nested("<b/>", 1000)).as_bytes()));
    }
}
