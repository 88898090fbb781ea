//! Names in certificates of a volume's authority. They are DNS names below one that cannot be
//! registered, as that is what TLS has.

use kestrel_types::placement::NodeId;
use kestrel_types::security::PeerName;

/// What all names end with. `.internal` is reserved for names that the DNS does not know.
pub(super) const DOMAIN: &str = ".kestrel.internal";

/// The name that a client asks for if any node of a volume will do.
pub(super) const ANY_NODE: &str = "volume.kestrel.internal";

const CLIENT: &str = ".client";
const NODE: &str = "node-";

/// Longest name of a client, bytes: that of a label.
const CLIENT_BYTES_MAX: usize = 63;

/// The name of a node.
pub(super) fn of_node(node: NodeId) -> String {
    format!("{NODE}{node}{DOMAIN}")
}

/// The name of this process; none if a client's cannot be in a certificate.
pub(super) fn of(name: &PeerName) -> Option<String> {
    match name {
        PeerName::Node(node) => Some(of_node(*node)),
        PeerName::Client(id) => is_label(id).then(|| format!("{id}{CLIENT}{DOMAIN}")),
    }
}

/// The node or client of this name.
pub(super) fn read(name: &str) -> Option<PeerName> {
    let label = name.strip_suffix(DOMAIN)?;
    if let Some(id) = label.strip_suffix(CLIENT) {
        return is_label(id).then(|| PeerName::Client(id.to_string()));
    }
    let node = label.strip_prefix(NODE)?.parse().ok()?;
    // One name has one spelling.
    (name == of_node(node)).then_some(PeerName::Node(node))
}

fn is_label(id: &str) -> bool {
    (1..=CLIENT_BYTES_MAX).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !id.starts_with('-')
        && !id.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_are_nobody() {
        for name in
            [PeerName::Node(0), PeerName::Node(4_294_967_295), PeerName::Client("t-01ab".into())]
        {
            assert_eq!(read(&of(&name).unwrap()), Some(name));
        }
        for id in ["", "A", "a.b", "-a", "a-", "ä", &"x".repeat(64)] {
            assert_eq!(of(&PeerName::Client(id.into())), None, "{id}");
        }
        for name in [
            ANY_NODE,
            "node-1.kestrel.internal.example",
            "node-01.kestrel.internal",
            "node-+1.kestrel.internal",
            "node-1",
        ] {
            assert_eq!(read(name), None, "{name}");
        }
        assert_eq!(read("node-1.client.kestrel.internal"), Some(PeerName::Client("node-1".into())));
    }
}
