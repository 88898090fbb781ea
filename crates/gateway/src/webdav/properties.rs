//! Properties that clients of WebDAV give files and directories, in one extended attribute.

use dav_server::fs::DavProp;
use kestrel_types::error::{FsError, FsResult};
use serde::{Deserialize, Serialize};

/// Extended attribute with the properties, as JSON.
pub const PROPERTIES_XATTR: &[u8] = b"user.webdav.properties";

/// Most bytes of all properties of a file: what an extended attribute can have.
const BYTES_MAX: usize = 64 << 10;

/// A property.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Property {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// The element, in XML.
    xml: String,
}

/// The properties of a file or directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Properties(Vec<Property>);

impl Properties {
    /// Reads what [`Properties::encode`] wrote. An attribute that something else wrote has none.
    pub fn decode(bytes: &[u8]) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// The value of the attribute; none if there are no properties.
    ///
    /// # Errors
    /// `ENOSPC` if they are too large.
    pub fn encode(&self) -> FsResult<Option<Box<[u8]>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let too_large = || FsError::new(libc::ENOSPC, "properties of a file have at most 64 KiB");
        let bytes = serde_json::to_vec(self).map_err(|_| too_large())?;
        if bytes.len() <= BYTES_MAX { Ok(Some(bytes.into())) } else { Err(too_large()) }
    }

    fn position(&self, wanted: &DavProp) -> Option<usize> {
        let matches = |it: &Property| it.name == wanted.name && it.namespace == wanted.namespace;
        self.0.iter().position(matches)
    }

    /// The element of a property, in XML.
    pub fn get(&self, wanted: &DavProp) -> Option<Vec<u8>> {
        self.position(wanted).map(|at| self.0[at].xml.clone().into_bytes())
    }

    /// All of them; without what they say unless `do_content`.
    pub fn all(&self, do_content: bool) -> Vec<DavProp> {
        let one = |it: &Property| DavProp {
            name: it.name.clone(),
            prefix: it.prefix.clone(),
            namespace: it.namespace.clone(),
            xml: do_content.then(|| it.xml.clone().into_bytes()),
        };
        self.0.iter().map(one).collect()
    }

    /// Sets a property.
    ///
    /// # Errors
    /// `EINVAL` if it is no text.
    pub fn set(&mut self, property: DavProp) -> FsResult<()> {
        let at = self.position(&property);
        let xml = String::from_utf8(property.xml.unwrap_or_default())
            .map_err(|_| FsError::new(libc::EINVAL, "a property is XML in UTF-8"))?;
        let DavProp { name, prefix, namespace, .. } = property;
        let property = Property { namespace, name, prefix, xml };
        match at {
            Some(at) => self.0[at] = property,
            None => self.0.push(property),
        }
        Ok(())
    }

    /// Removes a property. That there is none is no failure.
    pub fn remove(&mut self, property: &DavProp) {
        if let Some(at) = self.position(property) {
            self.0.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn property(namespace: &str, name: &str, text: &str) -> DavProp {
        DavProp::new(name.into(), "x".into(), namespace.into(), text.into())
    }

    /// A property is one of its namespace, and keeps its last value.
    #[test]
    fn properties_of_namespaces() {
        let mut all = Properties::default();
        assert_eq!(all.encode().unwrap(), None);
        for (namespace, text) in [("urn:a", "1"), ("urn:b", "2"), ("urn:a", "3")] {
            all.set(property(namespace, "p", text)).unwrap();
        }
        let all = Properties::decode(&all.encode().unwrap().unwrap());
        assert_eq!(all.all(true).len(), 2);
        let of_a = String::from_utf8(all.get(&property("urn:a", "p", "")).unwrap()).unwrap();
        assert!(of_a.contains(">3<"), "{of_a}");
        assert!(all.all(false).iter().all(|it| it.xml.is_none()));
        let mut all = all;
        all.remove(&property("urn:a", "p", ""));
        all.remove(&property("urn:c", "p", ""));
        assert!(all.get(&property("urn:a", "p", "")).is_none() && all.all(false).len() == 1);
    }

    /// What does not fit an extended attribute is refused, and what is no text.
    #[test]
    fn properties_that_are_refused() {
        let mut all = Properties::default();
        let mut bad = property("urn:a", "p", "");
        bad.xml = Some(vec![0xff]);
        assert_eq!(all.set(bad).unwrap_err().errno, libc::EINVAL);
        all.set(property("urn:a", "p", &"x".repeat(BYTES_MAX))).unwrap();
        assert_eq!(all.encode().unwrap_err().errno, libc::ENOSPC);
        assert_eq!(Properties::decode(b"{"), Properties::default());
    }
}
