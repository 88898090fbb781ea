//! Documents that are made from the code are kept equal to it by tests.

use std::path::Path;

/// Fails unless the document, a path from the repository's root, is `expected`. With
/// `KESTREL_BLESS=1` it is written instead.
///
/// # Panics
/// That is how it fails.
pub fn assert_document(path: &str, expected: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    if std::env::var_os("KESTREL_BLESS").is_some() {
        std::fs::write(&file, expected).unwrap_or_else(|why| panic!("{path}: {why}"));
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    if let Some((line, (found, expected))) = found
        .lines()
        .zip(expected.lines())
        .enumerate()
        .find(|(_, (found, expected))| found != expected)
    {
        panic!(
            "{path}:{}: has\n{found}\nbut should have\n{expected}\n(KESTREL_BLESS=1 writes it \
             anew)",
            line + 1
        );
    }
    assert_eq!(
        found.lines().count(),
        expected.lines().count(),
        "{path}: KESTREL_BLESS=1 writes it anew"
    );
}
