//! The null file system behaves like a file system.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use kestrel_fuse::End;
use kestrel_fuse::null::{NullFs, NullOptions};

use crate::kit::{Mounted, c_path, can_mount, check, errno};

#[test]
fn files() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::null();
    let path = mounted.path("file");
    assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
    let mut file = File::create_new(&path).unwrap();
    assert_eq!(errno(File::create_new(&path)), libc::EEXIST);
    file.write_all(&[7; 10_000]).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    assert_eq!(fs::metadata(&path).unwrap().len(), 10_000);
    file.seek(SeekFrom::Start(0)).unwrap();
    drop(file);
    assert_eq!(
        fs::read(&path).unwrap(),
        vec![0; 10_000],
        "what was written is gone, the size is not"
    );
    assert_eq!(
        File::options().write(true).truncate(true).open(&path).unwrap().metadata().unwrap().len(),
        0
    );
    fs::hard_link(&path, mounted.path("second")).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(&path).unwrap().ino(),
        fs::metadata(mounted.path("second")).unwrap().ino()
    );
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
    assert_eq!(fs::metadata(mounted.path("second")).unwrap().nlink(), 1);
    assert_eq!(mounted.unmount(), End::Unmounted);
}

#[test]
fn directories() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::null();
    fs::create_dir_all(mounted.path("a/b")).unwrap();
    assert_eq!(errno(fs::remove_dir(mounted.path("a"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(mounted.path("a/b"))), libc::EISDIR);
    let expected: BTreeSet<String> =
        (0..3000).map(|n| format!("file with a longer name {n}")).collect();
    for name in &expected {
        File::create(mounted.path("a/b").join(name)).unwrap();
    }
    let listed: Vec<String> = fs::read_dir(mounted.path("a/b"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed.len(), 3000);
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
    fs::remove_dir_all(mounted.path("a")).unwrap();
    assert_eq!(fs::read_dir(mounted.dir()).unwrap().count(), 0);
}

#[test]
fn renames() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::null();
    let rename = |from: &str, to: &str, flags: u32| {
        let (from, to) = (c_path(&mounted.path(from)), c_path(&mounted.path(to)));
        // SAFETY: live C strings.
        check(unsafe {
            libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags)
        })
    };
    fs::create_dir(mounted.path("d")).unwrap();
    fs::create_dir(mounted.path("e")).unwrap();
    File::create(mounted.path("d/x")).unwrap().set_len(1).unwrap();
    File::create(mounted.path("e/y")).unwrap().set_len(2).unwrap();
    let len = |name: &str| fs::metadata(mounted.path(name)).unwrap().len();
    assert_eq!(errno(rename("d/x", "e/y", libc::RENAME_NOREPLACE)), libc::EEXIST);
    rename("d/x", "e/y", libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((len("d/x"), len("e/y")), (2, 1));
    rename("d/x", "e/y", 0).unwrap();
    assert_eq!(len("e/y"), 2);
    assert_eq!(errno(fs::metadata(mounted.path("d/x"))), libc::ENOENT);
    rename("e/y", "e/z", 0).unwrap();
    assert_eq!(errno(rename("d", "e", 0)), libc::ENOTEMPTY);
    rename("e", "d", 0).unwrap();
    assert_eq!(len("d/z"), 2);
    assert_eq!(errno(rename("d", "d/under", 0)), libc::EINVAL);
}

#[test]
fn prepared_sizes_and_content() {
    if !can_mount() {
        return;
    }
    let options = NullOptions {
        file_bytes: 5 << 20,
        fill: b'k',
        direct_io: true,
        flush: true,
        keep_pages: false,
    };
    let mounted = Mounted::new(NullFs::new(options));
    let path = mounted.path("big");
    File::create_new(&path).unwrap();
    let mut content = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut content).unwrap();
    assert_eq!(content.len(), 5 << 20);
    assert!(content.iter().all(|byte| *byte == b'k'));
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut buffer = vec![0; 1 << 20];
    assert_eq!(file.read_at(&mut buffer, (5 << 20) - 10).unwrap(), 10);
}

#[test]
fn many_threads() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::null();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let mounted = &mounted;
            scope.spawn(move || {
                let own = mounted.path(&format!("dir{thread}"));
                fs::create_dir(&own).unwrap();
                for round in 0..100 {
                    let private = own.join(format!("f{round}"));
                    fs::write(&private, vec![1; round * 100]).unwrap();
                    assert_eq!(fs::read(&private).unwrap(), vec![0; round * 100]);
                    let shared = mounted.path(&format!("shared{thread}.{round}"));
                    fs::rename(&private, &shared).unwrap();
                    // All threads fight for one name.
                    let _ = fs::rename(&shared, mounted.path("one"));
                    let _ = fs::metadata(mounted.path("one"));
                    if round % 7 == 0 {
                        let _ = fs::remove_file(mounted.path("one"));
                    }
                }
                fs::remove_dir(&own).unwrap();
            });
        }
    });
    let left: Vec<_> =
        fs::read_dir(mounted.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "one"), "{left:?}");
    let stats = mounted.session().stats();
    assert_eq!(stats, Default::default());
    assert_eq!(mounted.unmount(), End::Unmounted);
}
