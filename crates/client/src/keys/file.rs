//! Files that hold a volume key: 32 bytes as hexadecimal or base64 text, for nobody's eyes but the
//! owner's.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use crate::error::VolumeError;

/// Bytes of a volume key.
pub(super) const VOLUME_KEY_BYTES: usize = 32;

/// Largest key file, bytes: a key with white space around it.
const FILE_BYTES_MAX: u64 = 256;

type Key = Zeroizing<[u8; VOLUME_KEY_BYTES]>;

/// Reads a key.
///
/// # Errors
/// If the file is not there, others than its owner may read or change it, or it holds no key.
pub(super) fn read(path: &Path) -> Result<Key, VolumeError> {
    let failed = |error: std::io::Error| VolumeError::io("read key file", path, error);
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    let bad = |why: &str| Err(VolumeError::Key(format!("key file {}: {why}", path.display())));
    if meta.mode() & 0o077 != 0 {
        return bad(&format!(
            "its mode {:04o} lets others than its owner at it; chmod 600 it, and rotate the key if \
             others may have read it",
            meta.mode() & 0o7777
        ));
    }
    // SAFETY: geteuid takes nothing and cannot fail.
    let me = unsafe { libc::geteuid() };
    if meta.uid() != me && meta.uid() != 0 {
        return bad(&format!(
            "it belongs to user {}; the key must be your own or root's",
            meta.uid()
        ));
    }
    // As large as it may get at once: growing would leave copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return bad(
            "it is too large to be a key; a key is 32 bytes as 64 hexadecimal digits or in base64",
        );
    }
    match decode(text.trim_ascii()) {
        Some(key) => Ok(key),
        None => bad("it holds no key; a key is 32 bytes as 64 hexadecimal digits or in base64"),
    }
}

/// Writes a key to a new file that only its owner may read, durably.
///
/// # Errors
/// If there is something under that name already, or the disk does not take it.
pub(super) fn create(path: &Path, key: &[u8; VOLUME_KEY_BYTES]) -> Result<(), VolumeError> {
    let mut text = Zeroizing::new(Vec::with_capacity(2 * VOLUME_KEY_BYTES + 1));
    for byte in key {
        text.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
    }
    text.push(b'\n');
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&text)?;
        file.sync_all()?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => VolumeError::Key(format!(
            "{}: there is a file already, and a key is never overwritten; choose another name",
            path.display()
        )),
        _ => VolumeError::io("create key file", path, error),
    })
}

/// The 32 bytes that the text stands for, if it does. White space around it is gone.
fn decode(text: &[u8]) -> Option<Key> {
    let mut key = Zeroizing::new([0; VOLUME_KEY_BYTES]);
    if text.len() == 2 * VOLUME_KEY_BYTES {
        for (byte, digits) in key.iter_mut().zip(text.chunks_exact(2)) {
            *byte = hex_digit(digits[0])? << 4 | hex_digit(digits[1])?;
        }
        return Some(key);
    }
    // 43 digits of 6 bits: two bits more than 32 bytes, which are zero.
    let text = text.strip_suffix(b"=").unwrap_or(text);
    if text.len() != (8 * VOLUME_KEY_BYTES).div_ceil(6) {
        return None;
    }
    let (mut bits, mut held, mut at) = (0u32, 0, 0);
    for digit in text {
        bits = bits << 6 | base64_digit(*digit)?;
        held += 6;
        if held >= 8 {
            held -= 8;
            *key.get_mut(at)? = (bits >> held) as u8;
            at += 1;
            bits &= (1 << held) - 1;
        }
    }
    (bits == 0).then_some(key)
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// Both alphabets of RFC 4648.
fn base64_digit(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const HEX: &str = "00102030405060708090a0b0c0d0e0f0ff112233445566778899aabbccddeeff";
    const BASE64: &str = "ABAgMEBQYHCAkKCwwNDg8P8RIjNEVWZ3iJmqu8zd7v8=";

    #[test]
    fn every_way_to_write_a_key_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let url = BASE64.replace('+', "-").replace('/', "_");
        for text in [HEX, &HEX.to_uppercase(), &format!("  {HEX}\r\n"), BASE64, &BASE64[..43], &url]
        {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let key = read(&path).unwrap();
            assert_eq!((key[0], key[1], key[15], key[31]), (0, 0x10, 0xf0, 0xff), "{text}");
        }
        for text in [
            "",
            "hello",
            &HEX[1..],
            &format!("{HEX}00"),
            &HEX.replace('f', "g"),
            &BASE64[1..],
            &"A".repeat(300),
        ] {
            fs::write(&path, text).unwrap();
            let why = read(&path).unwrap_err().to_string();
            assert!(why.contains("32 bytes") && why.contains("key"), "{why}");
            assert!(
                text.is_empty() || text == "hello" || !why.contains(text),
                "a key is never shown"
            );
        }
        // The last digit has two bits that mean nothing and must be zero.
        fs::write(&path, BASE64.replace("8=", "9=")).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        create(&path, &[7; 32]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(*read(&path).unwrap(), [7; 32]);
        for mode in [0o644, 0o640, 0o604, 0o620, 0o610] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let why = read(&path).unwrap_err().to_string();
            assert!(why.contains("chmod 600"), "{why}");
        }
        assert!(create(&path, &[8; 32]).unwrap_err().to_string().contains("never overwritten"));
        assert!(read(&dir.path().join("missing")).unwrap_err().to_string().contains("missing"));
        assert!(read(dir.path()).is_err());
    }
}
