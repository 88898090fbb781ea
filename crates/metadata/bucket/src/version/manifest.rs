//! What a version is, and which tables have its rows.

use std::collections::HashSet;

use kestrel_engine::EngineError;
use kestrel_types::hex::to_hex;
use serde::{Deserialize, Serialize};

use super::damaged;
use crate::Uuid;
use crate::hex;
use crate::table::{TableRecord, is_run};

/// What every manifest of a version begins with.
const MAGIC: &str = "kestrelfs-version";

/// Version of the format of manifests that name no inputs, which any program reads.
const FORMAT: u32 = 1;

/// The same of those that do.
const FORMAT_INPUTS: u32 = 2;

/// Most inputs of a version.
pub const INPUTS_MAX: usize = 1000;

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
    /// How much is in it.
    pub figures: VersionFigures,
    /// Rows in its tables.
    pub rows: u64,
    /// Sorted runs; each of tables that do not overlap, in ascending order. No key is in two runs.
    pub runs: Vec<Vec<TableRecord>>,
    /// CRC-32C, eight hexadecimal digits, of this document with this field empty.
    checksum: String,
}

/// What is read of a manifest of any format.
#[derive(Deserialize)]
struct Version {
    magic: String,
    format: u32,
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
        self.format = if inputs.is_empty() { FORMAT } else { FORMAT_INPUTS };
        self.inputs = inputs;
        Ok(self)
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

    fn text(&self) -> Vec<u8> {
        // Strings, numbers and lists: nothing that JSON could not say.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The object.
    pub fn encode(&self) -> Vec<u8> {
        let bare = Self { checksum: String::new(), ..self.clone() };
        let checksum = format!("{:08x}", crc32c::crc32c(&bare.text()));
        Self { checksum, ..bare }.text()
    }

    /// Reads the object of the version of this name.
    ///
    /// # Errors
    /// `Refused` for a newer format or what is no manifest, `Corrupt` for a damaged one or that of
    /// another name.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self, EngineError> {
        let what = format!("version {name}: its manifest");
        let bad = |why: &str| damaged(&what, why);
        let version: Version =
            serde_json::from_slice(bytes).map_err(|why| bad(&why.to_string()))?;
        if version.magic != MAGIC {
            return Err(EngineError::Refused(format!("{what} is not one of KestrelFS")));
        }
        if ![FORMAT, FORMAT_INPUTS].contains(&version.format) {
            return Err(EngineError::Refused(format!(
                "{what} has format {}, which is not known to this program; use a newer one",
                version.format
            )));
        }
        let found: Self = serde_json::from_slice(bytes).map_err(|why| bad(&why.to_string()))?;
        if found.encode() != bytes {
            return Err(bad("its checksum does not match"));
        }
        if found.name != name {
            return Err(bad("it is that of another version"));
        }
        let is_id =
            |text: &str| kestrel_types::hex::from_hex(text).is_some_and(|id| id.len() == 16);
        if !is_id(&found.id) || !is_id(&found.volume) {
            return Err(bad("it has no identity"));
        }
        if (found.format == FORMAT) != found.inputs.is_empty() {
            return Err(bad("its format and its inputs contradict each other"));
        }
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
        let text = br#"{"magic":"kestrelfs-version","format":3,"news":true}"#;
        let why = VersionManifest::decode("a", text).unwrap_err();
        assert!(matches!(&why, EngineError::Refused(why) if why.contains("format 3")), "{why}");
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
