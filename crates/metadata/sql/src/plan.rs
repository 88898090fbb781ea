//! Push-down: which conditions of a query narrow what is read, and to what.
//!
//! SQLite checks each row against all conditions once more, so what is read may be more than what
//! was asked for, never less. Three rules of SQLite matter for that:
//!
//! - A BLOB is greater than every TEXT. Paths that are not UTF-8 are BLOBs, so a lower bound alone
//!   says nothing of them, and an upper bound that is TEXT leaves them all out.
//! - SQLite adds bounds to a `GLOB` or `LIKE` by itself, which it does not check again, and which
//!   are wrong for BLOBs. So beside a `GLOB` or `LIKE` no bounds are used.
//! - Another collation than BINARY (`COLLATE NOCASE`) makes other things equal.

use rusqlite::types::ValueRef;
use rusqlite::vtab::IndexConstraintOp;

use crate::range::{PathRange, behind};

/// A column that conditions of use are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Name of the version.
    Version,
    /// The whole path.
    Path,
    /// Path of the directory.
    Parent,
    /// Name in the directory.
    Name,
}

/// How a condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `GLOB`
    Glob,
    /// `LIKE`
    Like,
    /// `>`
    Above,
    /// `>=`
    From,
    /// `<`
    Below,
    /// `<=`
    UpTo,
}

/// A condition that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    column: Column,
    comparison: Comparison,
}

/// All terms, as the plan names them for SQLite, which also shows them in `explain query plan`.
const TERMS: [(&str, Term); 10] = [
    ("version=", Term { column: Column::Version, comparison: Comparison::Equal }),
    ("path=", Term { column: Column::Path, comparison: Comparison::Equal }),
    ("path glob", Term { column: Column::Path, comparison: Comparison::Glob }),
    ("path like", Term { column: Column::Path, comparison: Comparison::Like }),
    ("path>", Term { column: Column::Path, comparison: Comparison::Above }),
    ("path>=", Term { column: Column::Path, comparison: Comparison::From }),
    ("path<", Term { column: Column::Path, comparison: Comparison::Below }),
    ("path<=", Term { column: Column::Path, comparison: Comparison::UpTo }),
    ("parent=", Term { column: Column::Parent, comparison: Comparison::Equal }),
    ("name=", Term { column: Column::Name, comparison: Comparison::Equal }),
];

impl Term {
    /// The term of a condition, if there is one.
    pub fn of(column: Column, operator: &IndexConstraintOp) -> Option<Self> {
        use IndexConstraintOp as Op;
        let comparison = match operator {
            Op::SQLITE_INDEX_CONSTRAINT_EQ => Comparison::Equal,
            Op::SQLITE_INDEX_CONSTRAINT_GLOB => Comparison::Glob,
            Op::SQLITE_INDEX_CONSTRAINT_LIKE => Comparison::Like,
            Op::SQLITE_INDEX_CONSTRAINT_GT => Comparison::Above,
            Op::SQLITE_INDEX_CONSTRAINT_GE => Comparison::From,
            Op::SQLITE_INDEX_CONSTRAINT_LT => Comparison::Below,
            Op::SQLITE_INDEX_CONSTRAINT_LE => Comparison::UpTo,
            _ => return None,
        };
        let term = Self { column, comparison };
        TERMS.iter().any(|(_, known)| *known == term).then_some(term)
    }

    fn name(self) -> &'static str {
        TERMS.iter().find(|(_, term)| *term == self).map_or("", |(name, _)| *name)
    }

    fn is_bound(self) -> bool {
        use Comparison::{Above, Below, From, UpTo};
        self.column == Column::Path && matches!(self.comparison, Above | From | Below | UpTo)
    }

    fn is_pattern(self) -> bool {
        matches!(self.comparison, Comparison::Glob | Comparison::Like)
    }
}

/// How rows are found.
#[derive(Debug, PartialEq)]
pub struct Plan {
    /// Numbers of the conditions that are used, in the order of `terms`.
    pub used: Vec<usize>,
    /// The terms as text.
    pub terms: String,
    /// What it costs, about, in the unit of a row that is read.
    pub cost: f64,
    /// How many rows it finds, about.
    pub rows: i64,
    /// It finds one row at most.
    pub is_unique: bool,
}

/// Versions that a volume has, about, and entries of a version, for the planner only.
const VERSIONS: f64 = 8.0;
const ENTRIES: f64 = 1e6;

impl Plan {
    /// The plan for conditions that SQLite offers, each with its number. `has_tree`: rows are those
    /// of trees, not of versions.
    pub fn of(offered: &[(usize, Term)], has_tree: bool) -> Self {
        let first = |column, comparison| {
            let term = Term { column, comparison };
            offered.iter().find(|(_, offered)| *offered == term).copied()
        };
        let equal = |column| first(column, Comparison::Equal);
        let mut used: Vec<(usize, Term)> = equal(Column::Version).into_iter().collect();
        let versions = if used.is_empty() { VERSIONS } else { 1.0 };
        let of_path = |wanted: fn(Term) -> bool| {
            offered.iter().copied().filter(move |(_, term)| wanted(*term))
        };
        let (cost, rows) = if !has_tree {
            (20.0, 1.0)
        } else if let Some(path) = equal(Column::Path) {
            used.push(path);
            (10.0, 1.0)
        } else if let Some(parent) = equal(Column::Parent) {
            used.push(parent);
            let name = equal(Column::Name);
            used.extend(name);
            if name.is_some() { (10.0, 1.0) } else { (200.0, 100.0) }
        } else if of_path(Term::is_pattern).next().is_some() {
            used.extend(of_path(Term::is_pattern));
            (4000.0, 1000.0)
        } else {
            used.extend(of_path(Term::is_bound));
            let has_end = used
                .iter()
                .any(|(_, term)| matches!(term.comparison, Comparison::Below | Comparison::UpTo));
            if has_end { (ENTRIES / 50.0, ENTRIES / 50.0) } else { (ENTRIES, ENTRIES) }
        };
        let names: Vec<&str> = used.iter().map(|(_, term)| term.name()).collect();
        Self {
            terms: names.join(","),
            used: used.into_iter().map(|(number, _)| number).collect(),
            cost: cost * versions,
            rows: (rows * versions) as i64,
            is_unique: rows * versions == 1.0,
        }
    }
}

/// What of a tree is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreePart {
    /// What has this path.
    Path(Vec<u8>),
    /// What is in the directory of this path: one name of it, or all.
    Children(Vec<u8>, Option<Vec<u8>>),
    /// Paths of a range.
    Range(PathRange),
}

/// What is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Of the version of this name only.
    pub version: Option<Vec<u8>>,
    /// What of its tree.
    pub part: TreePart,
}

/// What a value says in a comparison with texts and BLOBs.
enum Operand<'a> {
    Text(std::borrow::Cow<'a, [u8]>),
    Blob(&'a [u8]),
    /// No row compares as true.
    Null,
    /// SQLite makes a text of it by rules of its own.
    Other,
}

impl<'a> Operand<'a> {
    fn of(value: ValueRef<'a>) -> Self {
        match value {
            ValueRef::Text(text) => Self::Text(text.into()),
            ValueRef::Integer(number) => Self::Text(number.to_string().into_bytes().into()),
            ValueRef::Blob(bytes) => Self::Blob(bytes),
            ValueRef::Null => Self::Null,
            ValueRef::Real(_) => Self::Other,
        }
    }
}

/// What is equal to an operand; `Err`: nothing is.
fn equal_to(operand: Operand<'_>) -> Result<Option<Vec<u8>>, ()> {
    match operand {
        Operand::Text(text) => Ok(Some(text.into_owned())),
        // What is UTF-8 is TEXT, and no BLOB is equal to it.
        Operand::Blob(bytes) if std::str::from_utf8(bytes).is_err() => Ok(Some(bytes.into())),
        Operand::Blob(_) | Operand::Null => Err(()),
        Operand::Other => Ok(None),
    }
}

/// What all that matches a pattern begins with, and whether that is all of it.
fn beginning<'a>(pattern: &'a [u8], wildcards: &[u8]) -> (&'a [u8], bool) {
    match pattern.iter().position(|byte| wildcards.contains(byte)) {
        Some(end) => (&pattern[..end], false),
        None => (pattern, true),
    }
}

fn of_glob(pattern: &[u8]) -> PathRange {
    let (prefix, is_all) = beginning(pattern, b"*?[");
    match is_all {
        true => PathRange { low: prefix.into(), high: Some(behind(prefix)), folded: None },
        false => PathRange::of_prefix(prefix),
    }
}

/// Of `LIKE`, which takes A to Z for a to z: up to the first letter the bytes are what they are.
fn of_like(pattern: &[u8]) -> PathRange {
    let (folded, _) = beginning(pattern, b"%_");
    let exact = folded.iter().position(u8::is_ascii_alphabetic).unwrap_or(folded.len());
    PathRange { folded: Some(folded.into()), ..PathRange::of_prefix(&folded[..exact]) }
}

/// Bounds of a path, of which those that are TEXT count.
#[derive(Default)]
struct Bounds {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl Bounds {
    fn add(&mut self, comparison: Comparison, text: &[u8]) {
        match comparison {
            Comparison::Above => self.low = std::mem::take(&mut self.low).max(behind(text)),
            Comparison::From => self.low = std::mem::take(&mut self.low).max(text.into()),
            Comparison::UpTo => self.end(behind(text)),
            _ => self.end(text.into()),
        }
    }

    fn end(&mut self, end: Vec<u8>) {
        self.high = Some(self.high.take().map_or(end.clone(), |high| high.min(end)));
    }

    /// Without an upper bound all BLOBs are in it.
    fn range(self) -> PathRange {
        match self.high {
            Some(high) => PathRange { low: self.low, high: Some(high), folded: None },
            None => PathRange::default(),
        }
    }
}

impl Selection {
    /// What a plan with these terms selects with the values of its conditions; `None`: no row.
    pub fn of<'a>(terms: &str, values: impl Iterator<Item = ValueRef<'a>>) -> Option<Self> {
        let mut version = None;
        let (mut part, mut range, mut bounds) = (None, PathRange::default(), Bounds::default());
        let known = |name: &str| TERMS.iter().find(|(known, _)| *known == name);
        let terms = terms.split(',').filter_map(known).map(|(_, term)| *term);
        for (Term { column, comparison }, value) in terms.zip(values) {
            let operand = Operand::of(value);
            match (column, comparison) {
                (_, _) if matches!(operand, Operand::Null) => return None,
                (Column::Version, _) => version = equal_to(operand).ok()?,
                (Column::Path, Comparison::Equal) => {
                    part = equal_to(operand).ok()?.map(TreePart::Path);
                }
                (Column::Parent, _) => {
                    part = equal_to(operand).ok()?.map(|dir| TreePart::Children(dir, None));
                }
                (Column::Name, _) => {
                    let equal = equal_to(operand).ok()?;
                    if let Some(TreePart::Children(_, name)) = &mut part {
                        *name = equal;
                    }
                }
                (Column::Path, Comparison::Glob) => {
                    if let Operand::Text(pattern) = operand {
                        range.narrow(of_glob(&pattern));
                    }
                }
                (Column::Path, Comparison::Like) => {
                    if let Operand::Text(pattern) = operand {
                        range.narrow(of_like(&pattern));
                    }
                }
                (Column::Path, comparison) => {
                    if let Operand::Text(text) = operand {
                        bounds.add(comparison, &text);
                    }
                }
            }
        }
        range.narrow(bounds.range());
        Some(Self { version, part: part.unwrap_or(TreePart::Range(range)) })
    }

    /// Whether it has no condition on paths.
    pub fn is_whole_tree(&self) -> bool {
        self.part == TreePart::Range(PathRange::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Comparison::*;

    fn plan(offered: &[(Column, Comparison)]) -> (String, Vec<usize>, bool) {
        let term = |(column, comparison): &(Column, Comparison)| Term {
            column: *column,
            comparison: *comparison,
        };
        let offered: Vec<(usize, Term)> = offered.iter().map(term).enumerate().collect();
        let Plan { terms, used, is_unique, .. } = Plan::of(&offered, true);
        (terms, used, is_unique)
    }

    /// The condition that finds the fewest rows is used, and of a path's bounds all.
    #[test]
    fn plans_of_conditions() {
        let (version, path) = ((Column::Version, Equal), (Column::Path, Equal));
        let parent = (Column::Parent, Equal);
        assert_eq!(plan(&[]), (String::new(), vec![], false));
        assert_eq!(plan(&[path, version]), ("version=,path=".into(), vec![1, 0], true));
        assert_eq!(plan(&[parent, path]), ("path=".into(), vec![1], false));
        assert_eq!(
            plan(&[version, (Column::Name, Equal), parent]),
            ("version=,parent=,name=".into(), vec![0, 2, 1], true)
        );
        assert_eq!(plan(&[(Column::Name, Equal)]), (String::new(), vec![], false));
        let bounds = [(Column::Path, From), (Column::Path, Below)];
        assert_eq!(plan(&bounds), ("path>=,path<".into(), vec![0, 1], false));
        let glob = [bounds[0], bounds[1], (Column::Path, Glob), version];
        assert_eq!(plan(&glob), ("version=,path glob".into(), vec![3, 2], false));
        let cost = |offered: &[(usize, Term)]| Plan::of(offered, true).cost;
        let glob = Term { column: Column::Path, comparison: Glob };
        assert!(cost(&[(0, glob)]) < cost(&[]) / 100.0);
    }

    /// Operators that narrow nothing are no terms.
    #[test]
    fn terms_of_operators() {
        use IndexConstraintOp as Op;
        assert!(Term::of(Column::Path, &Op::SQLITE_INDEX_CONSTRAINT_LIKE).is_some());
        assert!(Term::of(Column::Version, &Op::SQLITE_INDEX_CONSTRAINT_LIKE).is_none());
        assert!(Term::of(Column::Path, &Op::SQLITE_INDEX_CONSTRAINT_NE).is_none());
        assert!(Term::of(Column::Name, &Op::SQLITE_INDEX_CONSTRAINT_GT).is_none());
    }

    fn selected(terms: &str, values: &[ValueRef<'_>]) -> Option<TreePart> {
        Selection::of(terms, values.iter().copied()).map(|selection| selection.part)
    }

    fn text(text: &str) -> ValueRef<'_> {
        ValueRef::Text(text.as_bytes())
    }

    fn range(low: &str, high: Option<&str>) -> Option<TreePart> {
        let (low, high) = (low.into(), high.map(Into::into));
        Some(TreePart::Range(PathRange { low, high, folded: None }))
    }

    /// Patterns become the range of what they begin with.
    #[test]
    fn selections_of_patterns() {
        let glob = |pattern| selected("path glob", &[text(pattern)]);
        assert_eq!(glob("a/b/*"), range("a/b/", Some("a/b0")));
        assert_eq!(glob("a[b]c"), range("a", Some("b")));
        assert_eq!(glob("*x"), range("", None));
        assert_eq!(glob("a/b"), range("a/b", Some("a/b\0")));
        assert_eq!(selected("path glob", &[ValueRef::Blob(b"a*")]), range("", None));
        assert_eq!(selected("path glob", &[ValueRef::Null]), None);
        let like = |pattern| match selected("path like", &[text(pattern)]) {
            Some(TreePart::Range(range)) => range,
            other => panic!("{other:?}"),
        };
        let folded = |low: &str, high: Option<&str>, folded: &str| PathRange {
            low: low.into(),
            high: high.map(Into::into),
            folded: Some(folded.into()),
        };
        assert_eq!(like("1/Ab_c"), folded("1/", Some("10"), "1/Ab"));
        assert_eq!(like("%a"), folded("", None, ""));
        assert_eq!(
            selected("path glob,path glob", &[text("a*"), text("ab*")]),
            range("ab", Some("ac"))
        );
    }

    /// Bounds count if BLOBs are left out: if one of them is an upper bound that is TEXT.
    #[test]
    fn selections_of_bounds() {
        let both = |low, high| selected("path>=,path<", &[low, high]);
        assert_eq!(both(text("a"), text("b")), range("a", Some("b")));
        assert_eq!(both(text("a"), ValueRef::Integer(5)), range("a", Some("5")));
        for blob in [ValueRef::Blob(b"b"), ValueRef::Real(5.0)] {
            assert_eq!(both(text("a"), blob), range("", None));
        }
        assert_eq!(both(ValueRef::Blob(b"a"), text("b")), range("", Some("b")));
        assert_eq!(both(text("a"), ValueRef::Null), None);
        assert_eq!(selected("path>", &[text("a")]), range("", None));
        assert_eq!(selected("path>,path<=", &[text("a"), text("b")]), range("a\0", Some("b\0")));
    }

    /// TEXT is equal to TEXT, and a BLOB to a path that is not UTF-8.
    #[test]
    fn selections_of_equals() {
        let path = |value| selected("path=", &[value]);
        assert_eq!(path(text("a")), Some(TreePart::Path(b"a".into())));
        assert_eq!(path(ValueRef::Integer(-7)), Some(TreePart::Path(b"-7".into())));
        assert_eq!(path(ValueRef::Blob(b"\xff")), Some(TreePart::Path(b"\xff".into())));
        assert_eq!(path(ValueRef::Blob(b"a")), None);
        assert_eq!(path(ValueRef::Null), None);
        assert_eq!(path(ValueRef::Real(1.0)), range("", None));
        assert_eq!(
            selected("parent=,name=", &[text("d"), text("n")]),
            Some(TreePart::Children(b"d".into(), Some(b"n".into())))
        );
        let whole = Selection::of("version=", [text("a@1")].into_iter()).unwrap();
        assert!(whole.is_whole_tree() && whole.version.as_deref() == Some(b"a@1"));
    }
}
