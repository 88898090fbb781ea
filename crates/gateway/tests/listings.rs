//! Listings of a real volume against sorted keys.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kestrel_client::descriptor::Durability;
use kestrel_client::storage::StoreOptions;
use kestrel_client::volume::{MountedVolume, NewVolume, Resources, Volume, format};
use kestrel_gateway::account::{Account, Buckets};
use kestrel_gateway::conditions::Conditions;
use kestrel_gateway::listing::{ListPage, ListRequest, Position};
use kestrel_gateway::object_key::ObjectKey;
use kestrel_gateway::writer::{ObjectInfo, ObjectWriter, Target};
use proptest::prelude::*;
use tempfile::TempDir;

struct TestVolume {
    _dir: TempDir,
    mounted: MountedVolume,
    account: Arc<Account>,
}

impl TestVolume {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("v").to_string_lossy().into_owned();
        // Nothing here is about power cuts.
        format(&url, NewVolume::plain("v", Durability::Fsync), &StoreOptions::default()).unwrap();
        let resources = Resources { metadata_bytes: 32 << 20, ..Resources::default() };
        let volume = Volume::open(&url, "test", &resources).unwrap();
        let mounted = volume.serve(&resources, false).unwrap();
        let account =
            Arc::new(Account::new(mounted.fs.clone(), (0, 0), Buckets::Directories, false));
        Self { _dir: dir, mounted, account }
    }

    fn put(&self, bucket: &str, key: &str) -> bool {
        let key = ObjectKey::parse(key).unwrap();
        let to = Target { bucket: bucket.into(), key };
        let (info, any) = (ObjectInfo::default(), Conditions::default());
        if to.key.is_directory() {
            return self.account.put_directory(&to, "e".into(), info, &any).is_ok();
        }
        let Ok(mut writer) = ObjectWriter::begin(&self.account, bucket, &to.key) else {
            return false;
        };
        writer.write(b"x").unwrap();
        writer.commit(&to, "e".into(), info, &any).is_ok()
    }
}

impl Drop for TestVolume {
    fn drop(&mut self) {
        self.mounted.fs.shutdown().unwrap();
    }
}

/// What a listing shall give: the keys and common prefixes in byte order, each once.
fn model(keys: &BTreeSet<String>, request: &ListRequest) -> Vec<(String, bool)> {
    let delimiter = request.delimiter.as_deref().filter(|text| !text.is_empty());
    let mut items: BTreeMap<String, bool> = BTreeMap::new();
    for key in keys.iter().filter(|key| key.starts_with(&request.prefix)) {
        let after = match &request.after {
            None => true,
            Some(Position::Key(after)) => key > after,
            Some(Position::Prefix(after)) => key > after && !key.starts_with(after.as_str()),
        };
        if !after {
            continue;
        }
        let rest = &key[request.prefix.len()..];
        match delimiter.and_then(|text| rest.find(text).map(|at| at + text.len())) {
            Some(at) => items.insert(key[..request.prefix.len() + at].to_string(), true),
            None => items.insert(key.clone(), false),
        };
    }
    items.into_iter().collect()
}

/// The items of a page in byte order.
fn items(page: &ListPage) -> Vec<(String, bool)> {
    let objects = page.objects.iter().map(|object| (object.key.clone(), false));
    let prefixes = page.prefixes.iter().map(|prefix| (prefix.clone(), true));
    let all: BTreeMap<String, bool> = objects.chain(prefixes).collect();
    all.into_iter().collect()
}

fn check(volume: &TestVolume, bucket: &str, keys: &BTreeSet<String>, request: &ListRequest) {
    let wanted = model(keys, request);
    let (mut got, mut next) = (Vec::new(), request.clone());
    loop {
        let page = volume.account.list(bucket, &next).unwrap();
        let count = page.objects.len() + page.prefixes.len();
        assert!(count <= request.count);
        assert!(page.objects.is_sorted_by(|one, two| one.key < two.key), "{request:?}");
        assert!(page.prefixes.is_sorted_by(|one, two| one < two), "{request:?}");
        got.extend(items(&page));
        let Some(position) = page.next else { break };
        assert_eq!(count, request.count, "a page that is not the last one is full");
        next.after = Some(Position::parse(&position.token()).unwrap());
        assert_eq!(next.after.as_ref(), Some(&position));
    }
    assert_eq!(got, wanted, "{request:?} of {keys:?}");
}

/// Names with bytes on both sides of the slash, which is what decides the order.
fn name() -> impl Strategy<Value = String> {
    "[a-b!./0\u{fc}-]{1,4}".prop_map(|text| text.replace('/', "-"))
}

fn key() -> impl Strategy<Value = String> {
    (prop::collection::vec(name(), 1..4), prop::bool::weighted(0.1)).prop_map(|(names, is_dir)| {
        let key = names.join("/");
        if is_dir { key + "/" } else { key }
    })
}

fn request() -> impl Strategy<Value = ListRequest> {
    let delimiter = prop::option::of(prop_oneof![
        4 => Just("/".to_string()),
        1 => Just("-".to_string()),
        1 => Just("a/".to_string()),
        1 => Just(String::new()),
    ]);
    let text = || prop_oneof!["[a-b!./0-]{0,5}", key()];
    let after = prop::option::of((text(), any::<bool>()).prop_map(|(text, is_prefix)| {
        if is_prefix && text.ends_with('/') { Position::Prefix(text) } else { Position::Key(text) }
    }));
    (text(), delimiter, after, 1..8usize).prop_map(|(prefix, delimiter, after, count)| {
        ListRequest { prefix, delimiter, after, count }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Any listing of any keys gives what sorted keys give, page by page.
    #[test]
    fn listings_are_as_sorted_keys(
        wanted in prop::collection::vec(key(), 0..40),
        requests in prop::collection::vec(request(), 60),
    ) {
        let volume = TestVolume::new();
        volume.account.make_bucket("bucket").unwrap();
        let mut keys = BTreeSet::new();
        for key in wanted {
            let is_key = key.split('/').all(|name| !matches!(name, "." | ".."));
            if is_key && volume.put("bucket", &key) {
                keys.insert(key);
            }
        }
        for request in &requests {
            check(&volume, "bucket", &keys, request);
        }
        let paged = ListRequest { delimiter: Some("/".into()), count: 3, ..ListRequest::default() };
        check(&volume, "bucket", &keys, &paged);
    }
}

/// A directory of several pages of names is listed to its end, and from any place in it.
#[test]
fn large_directory() {
    let volume = TestVolume::new();
    volume.account.make_bucket("bucket").unwrap();
    let mut keys = BTreeSet::new();
    for number in 0..2500 {
        let key = format!("d/{number:05}");
        assert!(volume.put("bucket", &key));
        keys.insert(key);
    }
    let all = ListRequest { count: 1000, ..ListRequest::default() };
    check(&volume, "bucket", &keys, &all);
    let some = ListRequest {
        prefix: "d/0".into(),
        after: Some(Position::Key("d/01999".into())),
        ..all.clone()
    };
    check(&volume, "bucket", &keys, &some);
    let dirs = ListRequest { delimiter: Some("/".into()), ..all };
    check(&volume, "bucket", &keys, &dirs);
}

/// What goes takes the directories with it that keys brought, and no others.
#[test]
fn deletion_removes_empty_directories() {
    let volume = TestVolume::new();
    volume.account.make_bucket("bucket").unwrap();
    for key in ["a/b/c/x", "a/b/y", "kept/", "kept/d/x"] {
        assert!(volume.put("bucket", key));
    }
    let delete = |key: &str| {
        let key = ObjectKey::parse(key).unwrap();
        volume.account.delete("bucket", &key, &Conditions::default()).unwrap();
    };
    delete("a/b/c/x");
    delete("kept/d/x");
    let dirs = ListRequest { delimiter: Some("/".into()), count: 10, ..ListRequest::default() };
    let page = volume.account.list("bucket", &dirs).unwrap();
    assert_eq!(page.prefixes, ["a/", "kept/"]);
    assert!(volume.put("bucket", "a/b/c"), "nothing is left in the way");
    delete("a/b/c");
    delete("a/b/y");
    delete("kept/");
    volume.account.remove_bucket("bucket").unwrap();
}
