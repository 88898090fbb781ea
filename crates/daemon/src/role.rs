//! What a node of a cluster is there for.

/// See the module's header. A node has it for as long as it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeRole {
    /// It owns a part of the volume and serves clients; it may coordinate besides.
    Metadata,
    /// It coordinates, or waits to, and serves no clients.
    Coordinator,
}

impl NodeRole {
    /// That of a member that the table says is idle, or not.
    pub fn of(idle: bool) -> Self {
        if idle { NodeRole::Coordinator } else { NodeRole::Metadata }
    }

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            NodeRole::Metadata => "metadata",
            NodeRole::Coordinator => "coordinator",
        }
    }
}
