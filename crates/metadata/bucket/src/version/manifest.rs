//! What a version is, and which tables have its rows.

use std::collections::HashSet;

use kestrel_engine::EngineError;
use kestrel_types::hex::to_hex;
use kestrel_types::ids::{FIRST_INODE, InodeId};
use serde::{Deserialize, Serialize};

use super::damaged;
use crate::Uuid;
use crate::document::{self, Document};
use crate::hex;
use crate::table::{TableRecord, is_run};
use crate::tree::layer::NumberSpan;

/// What every manifest of a version begins with.
const MAGIC: &str = "kestrelfs-version";

/// Version of the format of manifests that name no inputs, which any program reads.
const FORMAT: u32 = 1;

/// The same of those that do.
const FORMAT_INPUTS: u32 = 2;

/// The same of those that have changes of other versions.
const FORMAT_CHANGES: u32 = 3;

/// Most versions below one.
pub const LAYERS_MAX: usize = 1000;

/// Most inputs of a version.
pub const INPUTS_MAX: usize = 1000;

/// Inodes have numbers below this.
pub const NUMBERS_END: InodeId = 1 << 62;

/// Longest name of a version, bytes: twice as many digits are the name of a file.
pub const NAME_BYTES_MAX: usize = 120;

/// Identity of a version, random: every object of it carries it.
pub type VersionId = [u8; 16];

/// Fails unless a version may have this name.
///
/// # Errors
/// What names are like, in words.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric();
    let is_part = |byte: u8| is_word(byte) || matches!(byte, b'.' | b'_' | b'-' | b'@');
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits && name.bytes().all(is_part) && name.bytes().next().is_some_and(is_word) {
        return Ok(());
    }
    Err(format!(
        "version {name:?}: a name has 1 to {NAME_BYTES_MAX} letters, digits, '.', '_', '-' and \
         '@', and begins with a letter or digit, as imagenet@v3"
    ))
}

/// What a version was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionSource {
    /// Inode number of the directory.
    pub dir: u64,
    /// Inode number of the directory that the snapshot is of: this one, or one above.
    pub snapshot_dir: u64,
    /// The snapshot's number: the commit timestamp of the moment.
    pub snapshot: u64,
    /// The snapshot's name when the version was made, as bytes.
    #[serde(with = "hex")]
    pub snapshot_name: Vec<u8>,
    /// The snapshot was made for the version, and goes with it.
    pub owned: bool,
}

/// A version that another one was made from, as its publisher said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionInput {
    /// [`VersionId`], 32 hexadecimal digits.
    pub id: String,
    /// Its name at that time.
    pub name: String,
}

/// A version below another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRecord {
    /// [`VersionId`], 32 hexadecimal digits.
    pub id: String,
    /// Its name when it was put below.
    pub name: String,
    /// Number of the job that made it; 0: no job did.
    pub job: u32,
    /// Which version gave which numbers in its tables, itself the last one.
    pub numbers: Vec<NumberSpan>,
    /// As [`VersionManifest::runs`]. None of a *hollow* layer: a version above has all of its rows.
    pub runs: Vec<Vec<TableRecord>>,
}

/// What a job is made on: the versions below it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobBase {
    /// Number of the job.
    pub job: u32,
    /// Which version below gave which numbers.
    pub numbers: Vec<NumberSpan>,
    /// Numbers of directories that have another one too.
    pub aliases: u64,
    /// The versions below, each above those that it was made on; the first one that has a row says
    /// what it is.
    pub layers: Vec<LayerRecord>,
}

/// A version that a job made: its rows are changes of those of the versions below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangesRecord {
    /// What is below.
    pub base: JobBase,
    /// Behind the last number that the job gave; the first one is behind those of the base.
    pub end: InodeId,
}

impl LayerRecord {
    /// Whether it was made on another version, or is it.
    pub(super) fn is_above(&self, other: &LayerRecord) -> bool {
        self.numbers.iter().any(|span| span.id == other.id)
    }
}

impl JobBase {
    /// The first number that the job gives.
    pub fn first_number(&self) -> InodeId {
        self.numbers.iter().map(|span| span.end).max().unwrap_or(FIRST_INODE)
    }

    /// Whether the first version below was made on all others: the tree is that version's.
    pub fn is_settled(&self) -> bool {
        let mut layers = self.layers.iter();
        layers.next().is_none_or(|first| layers.all(|other| first.is_above(other)))
    }

    /// Whether each version below was made on all that are below it. Else some rows of directories
    /// may be of ones that no path leads to.
    pub fn is_chain(&self) -> bool {
        self.layers.windows(2).all(|pair| pair[0].is_above(&pair[1]))
    }

    /// Fails, with the reason in words, for what cannot be.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.layers.len() > LAYERS_MAX {
            return Err(format!(
                "{} versions below; there are at most {LAYERS_MAX}",
                self.layers.len()
            ));
        }
        check_numbers(&self.numbers)?;
        let mut ids = HashSet::new();
        for layer in &self.layers {
            if !is_id(&layer.id) || check_name(&layer.name).is_err() || !ids.insert(&layer.id) {
                return Err("a version below has no identity or name, or is there twice".into());
            }
            check_numbers(&layer.numbers)?;
            if layer.numbers.last().is_none_or(|span| span.id != layer.id) {
                return Err(format!("version {} below gave no numbers", layer.name));
            }
            if !layer.runs.iter().all(|run| is_run(run)) {
                return Err(format!("tables of version {} below overlap", layer.name));
            }
        }
        let circle = self.layers.iter().enumerate().find(|(at, layer)| {
            let above = &self.layers[..*at];
            let is_above = |span: &NumberSpan| above.iter().any(|other| other.id == span.id);
            layer.numbers.iter().any(is_above)
        });
        match circle {
            Some((_, layer)) => {
                Err(format!("version {} is below one that it was made on", layer.name))
            }
            None => Ok(()),
        }
    }
}

fn is_id(text: &str) -> bool {
    kestrel_types::hex::from_hex(text).is_some_and(|id| id.len() == 16)
}

/// Fails for spans that overlap, reach beyond what inodes are numbered with, or belong to one
/// version twice.
fn check_numbers(numbers: &[NumberSpan]) -> Result<(), String> {
    let mut spans: Vec<&NumberSpan> = numbers.iter().collect();
    spans.sort_unstable_by_key(|span| span.first);
    let overlap = spans.windows(2).any(|pair| pair[0].end > pair[1].first);
    let can_be = |span: &&NumberSpan| {
        is_id(&span.id)
            && FIRST_INODE <= span.first
            && span.first <= span.end
            && span.end <= NUMBERS_END
    };
    let ids: HashSet<&String> = numbers.iter().map(|span| &span.id).collect();
    if overlap || ids.len() < numbers.len() || !spans.iter().all(can_be) {
        return Err("numbers of versions overlap, or cannot be".into());
    }
    Ok(())
}

/// How much is in a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionFigures {
    /// Names that are not directories.
    pub files: u64,
    /// Directories, the root among them.
    pub directories: u64,
    /// Bytes: the sizes of its files, each counted once.
    pub bytes: u64,
}

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionManifest {
    magic: String,
    format: u32,
    /// Its name.
    pub name: String,
    /// Identity of the volume, 32 hexadecimal digits.
    pub volume: String,
    /// [`VersionId`], 32 hexadecimal digits.
    pub id: String,
    /// When it was published, nanoseconds since 1970.
    pub created: i64,
    /// The user that published it.
    pub user: u32,
    /// What it was made from.
    pub source: VersionSource,
    /// Versions that it was made from, in the order that the publisher gave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<VersionInput>,
    /// Of one that a job made: what it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changes: Option<ChangesRecord>,
    /// How much is in it.
    pub figures: VersionFigures,
    /// Rows in its tables.
    pub rows: u64,
    /// Sorted runs; each of tables that do not overlap, in ascending order. No key is in two runs.
    pub runs: Vec<Vec<TableRecord>>,
    /// CRC-32C, eight hexadecimal digits, of this document with this field empty.
    checksum: String,
}

impl Document for VersionManifest {
    fn checksum(&mut self) -> &mut String {
        &mut self.checksum
    }
}

impl VersionManifest {
    /// That of a version without tables.
    pub fn new(name: &str, volume: &Uuid, id: &VersionId, source: VersionSource) -> Self {
        Self {
            magic: MAGIC.into(),
            format: FORMAT,
            name: name.into(),
            volume: to_hex(volume),
            id: to_hex(id),
            created: 0,
            user: 0,
            source,
            inputs: Vec::new(),
            changes: None,
            figures: VersionFigures::default(),
            rows: 0,
            runs: Vec::new(),
            checksum: String::new(),
        }
    }

    /// The same, made from these versions.
    ///
    /// # Errors
    /// If one is there twice, or there are more than [`INPUTS_MAX`].
    pub fn with_inputs(mut self, inputs: Vec<VersionInput>) -> Result<Self, String> {
        check_inputs(&inputs).map_err(|why| format!("version {}: {why}", self.name))?;
        self.inputs = inputs;
        self.format = self.least_format();
        Ok(self)
    }

    /// The same, made by a job.
    ///
    /// # Errors
    /// If the versions below cannot be.
    pub fn with_changes(mut self, changes: ChangesRecord) -> Result<Self, String> {
        self.changes = Some(changes);
        self.check_changes().map_err(|why| format!("version {}: {why}", self.name))?;
        self.format = self.least_format();
        Ok(self)
    }

    fn least_format(&self) -> u32 {
        match (&self.changes, self.inputs.is_empty()) {
            (Some(_), _) => FORMAT_CHANGES,
            (None, false) => FORMAT_INPUTS,
            (None, true) => FORMAT,
        }
    }

    fn check_changes(&self) -> Result<(), String> {
        let Some(changes) = &self.changes else { return Ok(()) };
        changes.base.check()?;
        if changes.base.layers.iter().any(|layer| layer.id == self.id) {
            return Err("it is below itself".into());
        }
        check_numbers(&self.own_numbers(changes))
    }

    fn own_numbers(&self, changes: &ChangesRecord) -> Vec<NumberSpan> {
        let mut numbers = changes.base.numbers.clone();
        let (first, end) = (changes.base.first_number(), changes.end);
        numbers.push(NumberSpan { id: self.id.clone(), first, end });
        numbers
    }

    /// Which version gave which numbers in its tables, itself the last one; `end`: the number
    /// behind the last one, of a version that no job made.
    pub fn numbers(&self, end: InodeId) -> Vec<NumberSpan> {
        match &self.changes {
            Some(changes) => self.own_numbers(changes),
            None => vec![NumberSpan { id: self.id.clone(), first: FIRST_INODE, end }],
        }
    }

    /// Of a version that a job made: what it changes.
    pub fn changes(&self) -> Option<&ChangesRecord> {
        self.changes.as_ref()
    }

    /// What is below another version that has all rows of this one, and those of all versions below
    /// it; none: no job made it. It has a hollow layer for each.
    pub fn hollow(&self) -> Option<ChangesRecord> {
        let changes = self.changes()?;
        let own = LayerRecord {
            id: self.id.clone(),
            name: self.name.clone(),
            job: changes.base.job,
            numbers: self.own_numbers(changes),
            runs: Vec::new(),
        };
        let hollow = |layer: &LayerRecord| LayerRecord { runs: Vec::new(), ..layer.clone() };
        let layers = std::iter::once(own.clone());
        let layers = layers.chain(changes.base.layers.iter().map(hollow)).collect();
        let aliases = changes.base.aliases;
        let base = JobBase { job: 0, numbers: own.numbers, aliases, layers };
        let end = base.first_number();
        Some(ChangesRecord { base, end })
    }

    /// Identities of the versions that it cannot be read without.
    pub fn needs(&self) -> impl Iterator<Item = &str> {
        let layers = self.changes.iter().flat_map(|changes| &changes.base.layers);
        layers.map(|layer| layer.id.as_str())
    }

    /// Versions that it was made from, in the order that the publisher gave.
    pub fn inputs(&self) -> &[VersionInput] {
        &self.inputs
    }

    /// Its identity as bytes.
    pub fn id_bytes(&self) -> VersionId {
        let bytes = kestrel_types::hex::from_hex(&self.id).unwrap_or_default();
        // `decode` lets no other length through, and `new` makes none.
        bytes.try_into().unwrap_or_default()
    }

    /// Bytes of its tables.
    pub fn table_bytes(&self) -> u64 {
        self.runs.iter().flatten().map(|table| table.bytes).sum()
    }

    /// Number of its tables.
    pub fn tables(&self) -> usize {
        self.runs.iter().map(Vec::len).sum()
    }

    /// The object.
    pub fn encode(&self) -> Vec<u8> {
        document::encode(self)
    }

    /// Reads the object of the version of this name.
    ///
    /// # Errors
    /// `Refused` for a newer format or what is no manifest, `Corrupt` for a damaged one or that of
    /// another name.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self, EngineError> {
        let what = format!("version {name}: its manifest");
        let bad = |why: &str| damaged(&what, why);
        let version = document::head(bytes, &bad)?;
        if version.magic != MAGIC {
            return Err(EngineError::Refused(format!("{what} is not one of KestrelFS")));
        }
        if !(FORMAT..=FORMAT_CHANGES).contains(&version.format) {
            return Err(EngineError::Refused(format!(
                "{what} has format {}, which is not known to this program; use a newer one",
                version.format
            )));
        }
        let found: Self = document::decode(bytes, &bad)?;
        if found.name != name {
            return Err(bad("it is that of another version"));
        }
        if !is_id(&found.id) || !is_id(&found.volume) {
            return Err(bad("it has no identity"));
        }
        if found.format != found.least_format() {
            return Err(bad("its format and what is in it contradict each other"));
        }
        found.check_changes().map_err(|why| bad(&why))?;
        check_inputs(&found.inputs).map_err(|why| bad(&why))?;
        if !found.inputs.iter().all(|input| is_id(&input.id) && check_name(&input.name).is_ok()) {
            return Err(bad("an input has no identity or name"));
        }
        if !found.runs.iter().all(|run| is_run(run)) {
            return Err(bad("its tables overlap, or have sizes that they cannot have"));
        }
        Ok(found)
    }

    /// Fails unless it is a version of this volume.
    ///
    /// # Errors
    /// `Refused`.
    pub fn check_volume(&self, volume: &Uuid) -> Result<(), EngineError> {
        if self.volume == to_hex(volume) {
            return Ok(());
        }
        Err(EngineError::Refused(format!(
            "version {} belongs to the volume {}, not to {}: another place is meant",
            self.name,
            self.volume,
            to_hex(volume)
        )))
    }
}

/// Fails for inputs that cannot be.
fn check_inputs(inputs: &[VersionInput]) -> Result<(), String> {
    if inputs.len() > INPUTS_MAX {
        return Err(format!("{} inputs; a version has at most {INPUTS_MAX}", inputs.len()));
    }
    let mut seen = HashSet::new();
    match inputs.iter().find(|input| !seen.insert(&input.id)) {
        Some(twice) => Err(format!("input {} is there twice", twice.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> VersionManifest {
        let source = VersionSource {
            dir: 7,
            snapshot_dir: 7,
            snapshot: 99,
            snapshot_name: b"monday".into(),
            owned: true,
        };
        let mut made = VersionManifest::new("imagenet@v3", &[7; 16], &[9; 16], source);
        let table = |first: &[u8], last: &[u8]| TableRecord {
            id: 1,
            first: first.into(),
            last: last.into(),
            rows: 2,
            bytes: 100,
            head: 50,
        };
        made.runs = vec![vec![table(b"a", b"b"), table(b"c", b"d")]];
        made
    }

    /// Every flipped bit of a manifest is found, and so are a cut one and that of another name.
    #[test]
    fn damaged_manifests() {
        let good = sample().encode();
        assert_eq!(VersionManifest::decode("imagenet@v3", &good).unwrap().encode(), good);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(VersionManifest::decode("imagenet@v3", &bad).is_err(), "bit {bit}");
        }
        for bytes in [0, 50, 1 << 40, u64::MAX] {
            let mut bad = sample();
            bad.runs[0][1].bytes = bytes;
            assert!(VersionManifest::decode("imagenet@v3", &bad.encode()).is_err(), "{bytes}");
        }
        for len in 0..good.len() {
            assert!(VersionManifest::decode("imagenet@v3", &good[..len]).is_err());
        }
        let other = VersionManifest::decode("imagenet@v4", &good);
        assert!(matches!(other, Err(EngineError::Corrupt(_))));
    }

    /// A manifest with inputs is read as it was written, and refused by older programs by its
    /// format; one without has the older format. No input is there twice.
    #[test]
    fn manifests_with_inputs() {
        let input =
            |byte: u8, name: &str| VersionInput { id: to_hex(&[byte; 16]), name: name.into() };
        let inputs = vec![input(1, "raw@1"), input(2, "labels@2")];
        let made = sample().with_inputs(inputs.clone()).unwrap();
        let read = VersionManifest::decode("imagenet@v3", &made.encode()).unwrap();
        assert_eq!((read.inputs(), read.format), (&inputs[..], 2));
        let none = sample().with_inputs(Vec::new()).unwrap();
        assert_eq!((none.encode(), none.format), (sample().encode(), 1));
        assert!(sample().with_inputs(vec![input(1, "a"), input(1, "b")]).is_err());
        assert!(sample().with_inputs(vec![input(1, "a"); INPUTS_MAX + 1]).is_err());
        for (format, inputs) in [(1, inputs), (2, Vec::new())] {
            let bad = VersionManifest { format, inputs, ..sample() };
            assert!(VersionManifest::decode("imagenet@v3", &bad.encode()).is_err());
        }
    }

    /// Manifests as programs have written them since each format is there: they are read, and
    /// written again byte for byte.
    #[test]
    fn pinned_manifests() {
        let input = VersionInput { id: to_hex(&[1; 16]), name: "raw@1".into() };
        let made = [sample(), sample().with_inputs(vec![input]).unwrap()];
        let pinned = [include_str!("vectors/format-1.json"), include_str!("vectors/format-2.json")];
        for (made, pinned) in made.iter().zip(pinned) {
            let pinned = pinned.trim_end();
            assert_eq!(String::from_utf8(made.encode()).unwrap(), pinned);
            assert!(VersionManifest::decode("imagenet@v3", pinned.as_bytes()).is_ok());
        }
    }

    /// A manifest of a newer format is refused by that, whatever else is in it.
    #[test]
    fn newer_manifest() {
        let text = br#"{"magic":"kestrelfs-version","format":4,"news":true}"#;
        let why = VersionManifest::decode("a", text).unwrap_err();
        assert!(matches!(&why, EngineError::Refused(why) if why.contains("format 4")), "{why}");
    }

    #[test]
    fn names_of_versions() {
        for good in ["a", "imagenet@v3", "A.b_c-9@x"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "@v3", ".a", "a b", "a/b", "a\n", "ü", &"a".repeat(121)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
