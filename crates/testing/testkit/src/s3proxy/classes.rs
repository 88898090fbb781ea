//! Storage classes for a store that has none: which class an object was put or copied to, and which
//! of those in an archive can be read.
//!
//! A class is a label that the proxy keeps. A copy of an object to itself in another class changes
//! the label; every other request goes to the store.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::http::Head;

/// Classes of which objects have to be restored before they are read.
const ARCHIVES: [&str; 2] = ["GLACIER", "DEEP_ARCHIVE"];

const STANDARD: &str = "STANDARD";

/// How far an archive is with making an object readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Restore {
    #[default]
    None,
    UnderWay,
    Restored,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    class: String,
    restore: Restore,
}

impl Label {
    fn in_class(class: &str) -> Self {
        Self { class: class.into(), restore: Restore::None }
    }

    fn is_readable(&self) -> bool {
        !ARCHIVES.contains(&&*self.class) || self.restore == Restore::Restored
    }
}

/// An answer in the place of the store's.
#[derive(Debug, PartialEq, Eq)]
pub struct ClassAnswer {
    /// Status.
    pub code: u16,
    /// S3's code of the error; empty for a success.
    pub error: &'static str,
}

const fn refused(code: u16, error: &'static str) -> ClassAnswer {
    ClassAnswer { code, error }
}

const NOT_READABLE: ClassAnswer = refused(403, "InvalidObjectState");

/// The classes that there are, and the objects that are not in the first.
#[derive(Default)]
pub struct Classes {
    supported: Vec<String>,
    labels: Mutex<HashMap<String, Label>>,
}

/// The object that a request is about.
fn key_of(head: &Head) -> &str {
    head.word(1).split('?').next().unwrap_or_default()
}

impl Classes {
    /// These classes beside the standard one, with commas between them; none: requests pass as they
    /// come.
    pub fn of(names: &str) -> Self {
        let supported = names.split(',').filter(|name| !name.is_empty()).map(Into::into).collect();
        Self { supported, labels: Mutex::default() }
    }

    fn labels(&self) -> std::sync::MutexGuard<'_, HashMap<String, Label>> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request is answered that the store does not see.
    pub fn answer(&self, head: &Head) -> Option<ClassAnswer> {
        if self.supported.is_empty() {
            return None;
        }
        let (key, method) = (key_of(head), head.word(0));
        let class = head.header("x-amz-storage-class");
        if class
            .is_some_and(|class| class != STANDARD && !self.supported.iter().any(|is| is == class))
        {
            return Some(refused(400, "InvalidStorageClass"));
        }
        let mut labels = self.labels();
        let label = labels.get(key).cloned().unwrap_or(Label::in_class(STANDARD));
        let copies = head.header("x-amz-copy-source").is_some_and(|from| from == key);
        let restores = head.word(1).ends_with("?restore");
        match (method, class) {
            ("PUT", Some(class)) if copies => {
                if !label.is_readable() {
                    return Some(NOT_READABLE);
                }
                if label.class == class {
                    return Some(refused(400, "InvalidRequest"));
                }
                labels.insert(key.into(), Label::in_class(class));
                Some(refused(200, ""))
            }
            ("GET", _) if !label.is_readable() => Some(NOT_READABLE),
            ("POST", _) if restores => {
                if !ARCHIVES.contains(&&*label.class) {
                    return Some(NOT_READABLE);
                }
                let (code, error) = match label.restore {
                    Restore::None => (202, ""),
                    Restore::UnderWay => (409, "RestoreAlreadyInProgress"),
                    Restore::Restored => (200, ""),
                };
                if label.restore == Restore::None {
                    labels.insert(key.into(), Label { restore: Restore::UnderWay, ..label });
                }
                Some(refused(code, error))
            }
            _ => None,
        }
    }

    /// Notes a request that the store has done, and adds to its answer what it does not know.
    pub fn done(&self, head: &Head, answer: &mut Head) {
        if self.supported.is_empty() {
            return;
        }
        let key = key_of(head);
        match (head.word(0), head.header("x-amz-storage-class")) {
            ("PUT", Some(class)) if class != STANDARD => {
                self.labels().insert(key.into(), Label::in_class(class));
            }
            ("PUT" | "DELETE", _) => drop(self.labels().remove(key)),
            ("HEAD", _) => {
                let Some(label) = self.labels().get(key).cloned() else { return };
                answer.set("x-amz-storage-class", Some(&label.class));
                let restore = match label.restore {
                    Restore::None => return,
                    Restore::UnderWay => "ongoing-request=\"true\"",
                    Restore::Restored => {
                        "ongoing-request=\"false\", expiry-date=\"Fri, 21 Dec 2040 00:00:00 GMT\""
                    }
                };
                answer.set("x-amz-restore", Some(restore));
            }
            _ => {}
        }
    }

    /// Archives have made readable what they were asked for; how many objects.
    pub fn end_restores(&self) -> usize {
        let mut ended = 0;
        for label in self.labels().values_mut() {
            if label.restore == Restore::UnderWay {
                label.restore = Restore::Restored;
                ended += 1;
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object goes to an archive, is asked for, read, and copied out of it.
    #[test]
    fn life_of_an_archived_object() {
        let classes = Classes::of("GLACIER,STANDARD_IA");
        let head = |method: &str, target: &str, headers: &[&str]| {
            let first = format!("{method} {target} HTTP/1.1");
            Head::new(&[&[first.as_str()], headers].concat())
        };
        let mut good = Head::new(&["HTTP/1.1 200 OK"]);
        let put = head("PUT", "/b/k", &["x-amz-storage-class: GLACIER"]);
        assert_eq!(classes.answer(&put), None);
        classes.done(&put, &mut good);
        let copy =
            head("PUT", "/b/k", &["x-amz-copy-source: /b/k", "x-amz-storage-class: STANDARD_IA"]);
        let (get, restore) = (head("GET", "/b/k", &[]), head("POST", "/b/k?restore", &[]));
        assert_eq!(classes.answer(&get), Some(NOT_READABLE));
        assert_eq!(classes.answer(&copy), Some(NOT_READABLE));
        assert_eq!(classes.answer(&restore).map(|answer| answer.code), Some(202));
        assert_eq!(classes.answer(&restore).map(|answer| answer.code), Some(409));
        assert_eq!(classes.answer(&get), Some(NOT_READABLE));
        assert_eq!(classes.end_restores(), 1);
        assert_eq!(classes.answer(&get), None);
        let mut seen = Head::new(&["HTTP/1.1 200 OK"]);
        classes.done(&head("HEAD", "/b/k", &[]), &mut seen);
        assert_eq!(seen.header("x-amz-storage-class"), Some("GLACIER"));
        assert_eq!(classes.answer(&copy), Some(refused(200, "")));
        assert_eq!(classes.answer(&copy), Some(refused(400, "InvalidRequest")));
        assert_eq!(classes.answer(&restore), Some(NOT_READABLE));
        let other = head("PUT", "/b/k", &["x-amz-storage-class: ONEZONE_IA"]);
        assert_eq!(classes.answer(&other), Some(refused(400, "InvalidStorageClass")));
        assert_eq!(Classes::of("").answer(&other), None);
    }
}
