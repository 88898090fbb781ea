//! What is there: the tree as found after the crash, every byte of it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{errno, sys};

/// A name as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A file.
    File(FoundFile),
    /// Anything else, or something that cannot be read; the text says what.
    Bad(String),
}

/// A file as found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundFile {
    /// Inode number.
    pub ino: u64,
    /// Number of names.
    pub nlink: u64,
    /// All bytes.
    pub bytes: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// Every name below a directory.
pub type Tree = BTreeMap<String, Found>;

/// Reads everything below `dir`.
pub fn observe(dir: &Path) -> Result<Tree, String> {
    use std::os::unix::ffi::OsStrExt;
    let path = sys::cstring(dir.as_os_str().as_bytes());
    let fd =
        sys::openat(libc::AT_FDCWD, &path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)
            .map_err(|e| format!("{}: {}", dir.display(), errno::name(e)))? as i32;
    let mut tree = Tree::new();
    read_dir(fd, "", &mut tree).map_err(|e| format!("{}: {}", dir.display(), errno::name(e)))?;
    let _ = sys::close(fd);
    Ok(tree)
}

fn read_dir(fd: i32, prefix: &str, tree: &mut Tree) -> Result<(), i32> {
    for entry in crate::compare::dirs::rest(fd, 65536)? {
        if entry.name == b"." || entry.name == b".." {
            continue;
        }
        let path = format!("{prefix}{}", String::from_utf8_lossy(&entry.name));
        let found = observe_entry(fd, &entry.name, &path, tree)
            .unwrap_or_else(|e| Found::Bad(format!("cannot be read: {}", errno::name(e))));
        if tree.insert(path.clone(), found).is_some() {
            tree.insert(path, Found::Bad("is listed twice".into()));
        }
    }
    Ok(())
}

fn observe_entry(dir: i32, name: &[u8], path: &str, tree: &mut Tree) -> Result<Found, i32> {
    let name = sys::cstring(name);
    let st = sys::fstatat(dir, &name, libc::AT_SYMLINK_NOFOLLOW)?;
    let open = |flags| {
        sys::openat(dir, &name, flags | libc::O_NOFOLLOW | libc::O_CLOEXEC, 0).map(|fd| fd as i32)
    };
    match st.st_mode & libc::S_IFMT {
        libc::S_IFDIR => {
            let fd = open(libc::O_RDONLY | libc::O_DIRECTORY)?;
            let read = read_dir(fd, &format!("{path}/"), tree);
            let _ = sys::close(fd);
            read.map(|()| Found::Dir)
        }
        libc::S_IFLNK => {
            let mut target = vec![0; 4096];
            let n = sys::readlinkat(dir, &name, &mut target)?;
            target.truncate(n as usize);
            Ok(Found::Symlink(target))
        }
        libc::S_IFREG => {
            let fd = open(libc::O_RDONLY)?;
            let file = read_file(fd, &st);
            let _ = sys::close(fd);
            file.map(Found::File)
        }
        other => Ok(Found::Bad(format!("is of type {other:#o}"))),
    }
}

fn read_file(fd: i32, st: &libc::stat) -> Result<FoundFile, i32> {
    let mut file = FoundFile { ino: st.st_ino, nlink: st.st_nlink, ..FoundFile::default() };
    let mut buf = vec![0; 1 << 18];
    loop {
        let n = sys::read(fd, &mut buf)? as usize;
        if n == 0 {
            break;
        }
        file.bytes.extend_from_slice(&buf[..n]);
    }
    if file.bytes.len() as i64 != st.st_size {
        return Err(libc::EUCLEAN);
    }
    let mut list = vec![0; 65536];
    let n = match sys::flistxattr(fd, &mut list) {
        Err(libc::EOPNOTSUPP) => 0,
        other => other? as usize,
    };
    for name in list[..n].split(|&b| b == 0).filter(|n| n.starts_with(b"user.")) {
        let mut value = vec![0; 65536];
        let n = sys::fgetxattr(fd, &sys::cstring(name), &mut value)?;
        value.truncate(n as usize);
        file.xattrs.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(file)
}
