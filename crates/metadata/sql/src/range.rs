//! Ranges of paths, and what of a directory lies in one.
//!
//! Paths are compared by their bytes, as SQLite compares TEXT. A tree is stored by directory and
//! name, which is another order: the path `a/x` comes after `a-b`, the name `a` before it. So a
//! directory is entered if one path below it may be in the range, and of its names those are read
//! that are in the range, or that lead to such a directory.

/// Paths from `low` on and before `high`, maybe only those that begin with some letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathRange {
    /// The first path.
    pub low: Vec<u8>,
    /// The first path behind the range; none: there is no end.
    pub high: Option<Vec<u8>>,
    /// Only paths that begin so, where letters A to Z are a to z.
    pub folded: Option<Vec<u8>>,
}

/// What is to be read of a directory.
#[derive(Debug, PartialEq, Eq)]
pub struct NameRange {
    /// Names that are looked up one by one: directories on the way, which need not be there.
    pub single: Vec<Vec<u8>>,
    /// All names from this one on …
    pub from: Vec<u8>,
    /// … and before this one; none: to the end.
    pub to: Option<Vec<u8>>,
}

/// The first text behind all that begin with `prefix`; none: there is no such.
pub fn behind_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The first text behind `text`.
pub fn behind(text: &[u8]) -> Vec<u8> {
    [text, &[0]].concat()
}

impl PathRange {
    /// All paths that begin with `prefix`.
    pub fn of_prefix(prefix: &[u8]) -> Self {
        Self { low: prefix.to_vec(), high: behind_prefix(prefix), folded: None }
    }

    /// What is in this range and in the other one.
    pub fn narrow(&mut self, other: Self) {
        self.low = std::mem::take(&mut self.low).max(other.low);
        self.high = match (self.high.take(), other.high) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        self.folded = self.folded.take().or(other.folded);
    }

    fn is_before_end(&self, path: &[u8]) -> bool {
        self.high.as_ref().is_none_or(|high| path < high.as_slice())
    }

    /// Whether `path` begins as it should, or may be continued so.
    fn may_begin(&self, path: &[u8]) -> bool {
        self.folded.as_ref().is_none_or(|folded| {
            let len = folded.len().min(path.len());
            path[..len].eq_ignore_ascii_case(&folded[..len])
        })
    }

    /// Whether a path is in the range.
    pub fn has(&self, path: &[u8]) -> bool {
        let is_long = self.folded.as_ref().is_none_or(|folded| path.len() >= folded.len());
        path >= self.low.as_slice() && self.is_before_end(path) && is_long && self.may_begin(path)
    }

    /// Whether paths below the directory `path` may be in the range. It is changed meanwhile.
    pub fn may_have_below(&self, path: &mut Vec<u8>) -> bool {
        if path.is_empty() {
            return true;
        }
        path.push(b'/');
        let is_before = self.is_before_end(path) && self.may_begin(path);
        let behind = behind_prefix(path);
        path.pop();
        is_before && behind.is_none_or(|behind| self.low < behind)
    }

    /// What is to be read of a directory that may have paths in the range. `below` is what its
    /// paths begin with: its own with a slash, or nothing.
    pub fn of_names(&self, below: &[u8]) -> NameRange {
        let to = self.high.as_ref().and_then(|high| high.strip_prefix(below)).map(<[u8]>::to_vec);
        let low = self.low.strip_prefix(below).unwrap_or_default();
        let (name, has_more) = match low.iter().position(|byte| *byte == b'/') {
            Some(slash) => (&low[..slash], true),
            None => (low, false),
        };
        // A directory with the beginning of the name has what is below it behind the range's
        // beginning, where the next letter comes before a slash.
        let lengths = (1..name.len()).filter(|len| name[*len] < b'/');
        let lengths = lengths.chain(has_more.then_some(name.len()).filter(|len| *len > 0));
        let is_wanted = |name: &[u8]| to.as_ref().is_none_or(|to| [name, b"/"].concat() < *to);
        let single = lengths.map(|len| &name[..len]).filter(|name| is_wanted(name));
        let single = single.map(<[u8]>::to_vec).collect();
        // With more behind the name, names up to it with a slash are before the range.
        let from = if has_more { [name, b"0"].concat() } else { name.to_vec() };
        NameRange { single, from, to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(low: &str, high: &str) -> PathRange {
        let high = (!high.is_empty()).then(|| high.into());
        PathRange { low: low.into(), high, folded: None }
    }

    fn names(single: &[&str], from: &str, to: Option<&str>) -> NameRange {
        NameRange {
            single: single.iter().map(|name| name.as_bytes().to_vec()).collect(),
            from: from.into(),
            to: to.map(Into::into),
        }
    }

    /// A prefix reads one name of each directory on the way, and then what it names.
    #[test]
    fn names_of_a_prefix() {
        let prefix = PathRange::of_prefix(b"a-1/b/x");
        assert_eq!(prefix.high.as_deref(), Some(&b"a-1/b/y"[..]));
        assert_eq!(prefix.of_names(b""), names(&["a-1"], "a-10", Some("a-1/b/y")));
        assert_eq!(prefix.of_names(b"a-1/"), names(&["b"], "b0", Some("b/y")));
        assert_eq!(prefix.of_names(b"a-1/b/"), names(&[], "x", Some("y")));
        assert_eq!(prefix.of_names(b"a-1/b/x1/"), names(&[], "", None));
        assert_eq!(PathRange::of_prefix(b"").of_names(b"a/"), names(&[], "", None));
    }

    /// Where a range begins within a directory, directories that have the beginning of that name as
    /// their name are looked up: what they have may be in the range.
    #[test]
    fn names_of_a_range() {
        assert_eq!(range("a-b.c", "").of_names(b""), names(&["a", "a-b"], "a-b.c", None));
        assert_eq!(range("a-b.c", "a/").of_names(b""), names(&["a-b"], "a-b.c", Some("a/")));
        assert_eq!(range("d/m", "d/p").of_names(b"d/n/"), names(&[], "", None));
    }

    /// Every set of paths: what is read are the paths in the range, and directories on the way.
    #[test]
    fn ranges_of_all_paths() {
        let letters = ["", "!", "-", "0"];
        let mut parts: Vec<String> = Vec::new();
        for one in &letters[1..] {
            parts.extend(letters.iter().map(|two| format!("{one}{two}")));
        }
        let below = |top: &str| parts.iter().map(|part| format!("{top}/{part}")).collect();
        let mut paths: Vec<String> = parts.clone();
        paths.extend(parts.iter().flat_map(|part| -> Vec<String> { below(part) }));
        let mut bounds = paths.clone();
        bounds.extend(["", "0/", "-/", "-0", "0!/!", "b", "/"].map(String::from));
        for (low, high) in bounds.iter().flat_map(|low| bounds.iter().map(move |high| (low, high)))
        {
            let range = range(low, high);
            let mut found = Vec::new();
            let read = |below: &str, found: &mut Vec<String>| {
                let NameRange { single, from, to } = range.of_names(below.as_bytes());
                let has = |name: &str| {
                    let name = name.as_bytes();
                    single.iter().any(|one| one == name)
                        || name >= from.as_slice()
                            && to.as_ref().is_none_or(|to| name < to.as_slice())
                };
                let names: Vec<&String> = parts.iter().filter(|name| has(name)).collect();
                for name in &names {
                    let path = format!("{below}{name}");
                    if range.has(path.as_bytes()) {
                        found.push(path);
                    }
                }
                names.iter().map(|name| (*name).clone()).collect::<Vec<String>>()
            };
            for name in read("", &mut found) {
                if range.may_have_below(&mut name.clone().into_bytes()) {
                    read(&format!("{name}/"), &mut found);
                }
            }
            found.sort_unstable();
            let mut wanted: Vec<String> =
                paths.iter().filter(|path| range.has(path.as_bytes())).cloned().collect();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{low:?} to {high:?}");
        }
    }

    /// Letters are folded as SQLite's LIKE does, and directories on the way are entered.
    #[test]
    fn folded_beginnings() {
        let range = PathRange { folded: Some(b"A/bc".into()), ..PathRange::default() };
        assert!(range.has(b"a/BCd") && range.has(b"A/bc") && !range.has(b"a/b"));
        assert!(
            range.may_have_below(&mut b"a".to_vec()) && !range.may_have_below(&mut b"b".into())
        );
        assert!(!range.may_have_below(&mut b"a/b".to_vec()));
        assert!(range.may_have_below(&mut b"a/bC".to_vec()));
    }
}
