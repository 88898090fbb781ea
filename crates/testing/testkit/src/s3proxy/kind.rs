//! What an S3 request asks for, read off its first line (path-style addresses).

/// Kinds of requests, as they are counted and as rules choose among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A whole object written.
    Put,
    /// A part of a multipart upload written.
    Part,
    /// A copy of an object or part made within the store.
    Copy,
    /// An object or a range of one read.
    Get,
    /// An object looked at.
    Head,
    /// A page of a listing.
    List,
    /// An object deleted.
    Delete,
    /// Many objects deleted.
    DeleteMany,
    /// A multipart upload begun, finished, given up or looked at.
    Multipart,
    /// Buckets and everything else.
    Other,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Put,
        Self::Part,
        Self::Copy,
        Self::Get,
        Self::Head,
        Self::List,
        Self::Delete,
        Self::DeleteMany,
        Self::Multipart,
        Self::Other,
    ];

    /// Its name in counts and rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Part => "part",
            Self::Copy => "copy",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::DeleteMany => "delete-many",
            Self::Multipart => "multipart",
            Self::Other => "other",
        }
    }

    /// The kind of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind of a request; `copies` tells whether it names a source within the store.
    pub fn of(method: &str, target: &str, copies: bool) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
        let key =
            path.trim_start_matches('/').split_once('/').is_some_and(|(_, key)| !key.is_empty());
        let in_upload = has("uploadId");
        match (method, key) {
            ("PUT", true) if copies => Self::Copy,
            ("PUT", true) if in_upload => Self::Part,
            ("PUT", true) if sub_resource(query) => Self::Other,
            ("PUT", true) => Self::Put,
            ("GET", true) if in_upload => Self::Multipart,
            ("GET" | "HEAD", true) if sub_resource(query) => Self::Other,
            ("GET", true) => Self::Get,
            ("HEAD", true) => Self::Head,
            ("DELETE", true) if in_upload => Self::Multipart,
            ("DELETE", true) => Self::Delete,
            ("POST", true) if in_upload || has("uploads") => Self::Multipart,
            ("POST", false) if has("delete") => Self::DeleteMany,
            ("GET", false) if has("uploads") => Self::Multipart,
            ("GET", false) if has("list-type") || has("prefix") || has("marker") => Self::List,
            _ => Self::Other,
        }
    }
}

/// Whether the query asks for something about an object, not for the object.
fn sub_resource(query: &str) -> bool {
    const NAMES: [&str; 6] = ["acl", "attributes", "tagging", "retention", "legal-hold", "torrent"];
    query.split('&').any(|pair| NAMES.contains(&pair.split('=').next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn kinds_of_requests() {
        for (method, target, kind) in [
            ("PUT", "/b/p/00/1", Kind::Put),
            ("PUT", "/b/k?partNumber=1&uploadId=x", Kind::Part),
            ("GET", "/b/k", Kind::Get),
            ("GET", "/b/k?x-id=GetObject", Kind::Get),
            ("HEAD", "/b/k", Kind::Head),
            ("HEAD", "/b", Kind::Other),
            ("GET", "/b?list-type=2&prefix=p%2F", Kind::List),
            ("GET", "/b/?list-type=2", Kind::List),
            ("GET", "/b?location", Kind::Other),
            ("GET", "/b?uploads", Kind::Multipart),
            ("DELETE", "/b/k", Kind::Delete),
            ("DELETE", "/b/k?uploadId=x", Kind::Multipart),
            ("POST", "/b?delete", Kind::DeleteMany),
            ("POST", "/b/k?uploads", Kind::Multipart),
            ("POST", "/b/k?uploadId=x", Kind::Multipart),
            ("PUT", "/b", Kind::Other),
            ("PUT", "/b/k?tagging", Kind::Other),
        ] {
            assert_eq!(Kind::of(method, target, false), kind, "{method} {target}");
        }
        assert_eq!(Kind::of("PUT", "/b/k", true), Kind::Copy);
        assert!(Kind::ALL.into_iter().all(|kind| Kind::parse(kind.name()) == Some(kind)));
        assert_eq!(Kind::parse("gets"), None);
    }
}
