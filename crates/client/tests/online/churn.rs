//! Writers that know what their files should hold, beside an administrator.

use kestrel_testkit::stop::StopOnDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kestrel_blockstore::store::BlockStore;
use kestrel_client::fs::{Caller, Compacted, FileHandle, Fs, wait};
use kestrel_types::ids::ROOT;
use kestrel_types::name::PathRef;
use kestrel_types::request::{RenameFlags, SetAttr};

use crate::volume::{close, collect, compact, copy, errors, name, open, pattern, read_all, volume};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// Files of one writer.
const FILES: usize = 16;

/// A writer with its files as they should be.
struct Writer {
    fs: Arc<Fs>,
    id: u64,
    random: Random,
    model: Vec<Option<Vec<u8>>>,
    open: Vec<Option<Arc<FileHandle>>>,
}

impl Writer {
    fn new(fs: Arc<Fs>, id: u64) -> Self {
        let random = Random(0x9e37_79b9_7f4a_7c15 ^ (id + 1));
        Self { fs, id, random, model: vec![None; FILES], open: vec![None; FILES] }
    }

    fn name(&self, file: usize) -> String {
        format!("w{}-{file}", self.id)
    }

    fn handle(&mut self, file: usize) -> Arc<FileHandle> {
        let text = self.name(file);
        self.model[file].get_or_insert_default();
        self.open[file].get_or_insert_with(|| open(&self.fs, &text)).clone()
    }

    fn step(&mut self, step: u64) {
        let file = self.random.below(FILES as u64) as usize;
        match self.random.below(12) {
            0..=2 => {
                let len = 1 + self.random.below(60_000) as usize;
                let bytes = pattern(step * 7 + self.id, len);
                let handle = self.handle(file);
                let set = SetAttr { size: Some(0), through_handle: true, ..SetAttr::default() };
                wait(|done| self.fs.setattr(Caller::ROOT, handle.ino(), set, done)).unwrap();
                self.fs.write(&handle, 0, &bytes, false).unwrap();
                self.model[file] = Some(bytes);
            }
            3..=5 => {
                let (offset, len) =
                    (self.random.below(300_000), 1 + self.random.below(9000) as usize);
                let bytes = pattern(step * 11 + self.id, len);
                let handle = self.handle(file);
                self.fs.write(&handle, offset, &bytes, false).unwrap();
                let model = self.model[file].as_mut().unwrap();
                model.resize(model.len().max(offset as usize + len), 0);
                model[offset as usize..offset as usize + len].copy_from_slice(&bytes);
            }
            6 => {
                let size = self.random.below(200_000);
                let handle = self.handle(file);
                let set = SetAttr { size: Some(size), through_handle: true, ..SetAttr::default() };
                wait(|done| self.fs.setattr(Caller::ROOT, handle.ino(), set, done)).unwrap();
                self.model[file].as_mut().unwrap().resize(size as usize, 0);
            }
            7 => {
                let from = self.random.below(FILES as u64) as usize;
                if from == file || self.model[from].is_none() {
                    return;
                }
                let (source, target) = (self.handle(from), self.handle(file));
                let copied = copy(&self.fs, &source, &target) as usize;
                let bytes = self.model[from].clone().unwrap();
                assert_eq!(copied, bytes.len());
                let model = self.model[file].as_mut().unwrap();
                model.resize(model.len().max(copied), 0);
                model[..copied].copy_from_slice(&bytes);
            }
            8 if self.model[file].is_some() => {
                wait(|done| {
                    self.fs.unlink(Caller::ROOT, PathRef::new(ROOT, name(&self.name(file))), done)
                })
                .unwrap();
                self.model[file] = None;
                if let Some(handle) = self.open[file].take() {
                    close(&self.fs, handle);
                }
            }
            9 if self.model[file].is_some() => {
                let to = self.random.below(FILES as u64) as usize;
                if to == file {
                    return;
                }
                let names =
                    [self.name(file), self.name(to)].map(|text| PathRef::new(ROOT, name(&text)));
                let [from, onto] = names;
                wait(|done| self.fs.rename(Caller::ROOT, from, onto, RenameFlags::default(), done))
                    .unwrap();
                self.model[to] = self.model[file].take();
                let handle = self.open[file].take();
                if let Some(replaced) = std::mem::replace(&mut self.open[to], handle) {
                    close(&self.fs, replaced);
                }
            }
            10 => {
                if let Some(handle) = self.open[file].take() {
                    close(&self.fs, handle);
                }
            }
            _ => self.verify(file),
        }
        // Committed now, else most of what happens would happen in memory.
        if let Some(handle) = &self.open[file] {
            wait(|done| self.fs.flush(handle, done)).unwrap();
        }
    }

    fn verify(&mut self, file: usize) {
        let Some(expected) = self.model[file].clone() else { return };
        let handle = self.handle(file);
        assert!(
            read_all(&self.fs, &handle) == expected,
            "{} is not what was written",
            self.name(file)
        );
    }

    fn finish(mut self) {
        for file in 0..FILES {
            self.verify(file);
            if let Some(handle) = self.open[file].take() {
                close(&self.fs, handle);
            }
            self.verify(file);
            if let Some(handle) = self.open[file].take() {
                close(&self.fs, handle);
            }
        }
    }
}

/// Writers and an administrator, until each writer has done its steps.
pub fn churn(store: Arc<dyn BlockStore>, steps: u64) {
    let volume = volume(store);
    let scratch = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let mut done = Compacted::default();
    std::thread::scope(|scope| {
        let stopper = StopOnDrop::new(&stop);
        let writers: Vec<_> = (0..3)
            .map(|id| {
                let fs = volume.fs.clone();
                scope.spawn(move || {
                    let mut writer = Writer::new(fs, id);
                    (0..steps).for_each(|step| writer.step(step));
                    writer
                })
            })
            .collect();
        let admin = scope.spawn(|| {
            let mut done = Compacted::default();
            let mut rounds = 0;
            while !stop.load(Ordering::SeqCst) || rounds < 2 {
                let compacted = compact(&volume);
                done.moved += compacted.moved;
                done.folded += compacted.folded;
                done.failed += compacted.failed;
                volume.fs.reap().unwrap();
                assert_eq!(collect(&volume, 0).disputed, 0);
                assert_eq!(errors(&volume, scratch.path()), [""; 0]);
                rounds += 1;
            }
            done
        });
        let writers: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        drop(stopper);
        done = admin.join().unwrap();
        for writer in writers {
            writer.unwrap().finish();
        }
    });
    assert!(done.moved > 0, "{done:?}: there was something to do");
    assert_eq!(done.failed, 0);
    volume.fs.shutdown().unwrap();
    assert_eq!(errors(&volume, scratch.path()), [""; 0]);
    // What was deleted last is reaped when its time of grace is over.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let left = loop {
        volume.fs.reap().unwrap();
        let left = collect(&volume, 0);
        if left.scheduled == 0 || std::time::Instant::now() > until {
            break left;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    assert_eq!(
        (left.leaked, left.objects),
        (0, left.referenced),
        "{left:?}: what is stored is in use"
    );
}
