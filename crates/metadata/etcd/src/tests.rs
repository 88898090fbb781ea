//! Tests against a real etcd.
//!
//! | file | what it has |
//! | --- | --- |
//! | `tests/server.rs` | etcd servers in temporary directories |

#[path = "../../postgres/src/tests/relay.rs"]
mod relay;
mod server;

use kestrel_testkit::stop::StopOnDrop;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread;

use kestrel_engine::exercise::{
    EngineOp, ExpectedRows, apply, check, commit, content, encode, op, put, remove,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use relay::Relay;
use server::{Server, shared};

const UUID: Uuid = *b"0123456789abcdef";

fn no_hook() -> BeforeSync {
    Arc::new(|| Ok(()))
}

/// A name that no other test has.
fn fresh() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test/{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn made(url: &str) -> EtcdUrl {
    let url = EtcdUrl::parse(url).unwrap();
    EtcdEngine::create(&url, UUID, 4).unwrap();
    url
}

fn open_with(url: &EtcdUrl, take_over: bool) -> Result<EtcdEngine, EngineError> {
    EtcdEngine::open(url.clone(), UUID, 4, EtcdOptions { take_over }, no_hook())
}

fn open(url: &EtcdUrl) -> Result<EtcdEngine, EngineError> {
    open_with(url, false)
}

fn expect_err<T>(result: Result<T, EngineError>) -> EngineError {
    match result {
        Ok(_) => panic!("must fail"),
        Err(why) => why,
    }
}

/// Does something with a client of its own.
fn aside<T: Send + 'static, F>(
    url: &EtcdUrl,
    work: impl FnOnce(Arc<Client>, Shard) -> F + Send + 'static,
) -> T
where
    F: Future<Output = Result<T, EngineError>> + Send,
{
    let (runtime, url) = (runtime().unwrap(), url.clone());
    let doing = async move {
        let shard = Shard::new(&url, 4);
        work(Client::new(url)?, shard).await
    };
    wait(runtime.handle(), doing).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn it_agrees_with_a_map(ops in vec(op(), 1..80)) {
        let url = made(&shared().url(&fresh(), ""));
        let mut expected = ExpectedRows::new();
        let mut engine = open(&url).unwrap();
        for op in &ops {
            check(&engine, &mut expected, op);
            match op {
                EngineOp::Flush => engine.sync().unwrap(),
                EngineOp::Evict | EngineOp::Compact => engine.forget(),
                EngineOp::Close | EngineOp::Kill => {
                    engine.settle().unwrap();
                    drop(engine);
                    engine = open(&url).unwrap();
                }
                _ => {}
            }
        }
        prop_assert_eq!(content(&engine), expected);
    }
}

#[test]
fn batches_of_any_size_are_read_by_the_next_one() {
    let url = made(&shared().url(&fresh(), ""));
    let engine = open(&url).unwrap();
    let mut expected = ExpectedRows::new();
    for round in 0..30u32 {
        // Some go together in one transaction, and some do not fit in one: by their rows, or by
        // their bytes.
        let (rows, bytes) = match round {
            7 => (1000, 90),
            8 => (5, 900 << 10),
            9 => (3, 1 << 20),
            _ => (40, 90),
        };
        let batch: Vec<Mutation> = (0..rows)
            .map(|number| {
                put(
                    u64::from(number % 7),
                    &(round * 40 + number).to_be_bytes(),
                    &vec![round as u8; bytes],
                )
            })
            .chain([remove(1, &(round * 20).to_be_bytes())])
            .collect();
        apply(&mut expected, &batch);
        assert_eq!(engine.commit(BatchKind::Growing, batch).unwrap(), u64::from(round) + 1);
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    engine.on_durable(30, Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap().unwrap();
    assert_eq!(engine.durable(), 30);
    let stats = engine.stats();
    assert!(stats.syncs < 30, "{} transactions: nothing was put together", stats.syncs);
    engine.forget();
    assert_eq!(content(&engine), expected);
    drop(engine);
    let again = open(&url).unwrap();
    assert_eq!(again.durable(), 30);
    assert_eq!(content(&again), expected);
}

#[test]
fn what_does_not_belong_in_etcd_is_refused() {
    let url = made(&shared().url(&fresh(), ""));
    let engine = open(&url).unwrap();
    let large = vec![7; 1 << 20];
    for number in 0..15u8 {
        commit(&engine, vec![put(1, &[number], &large)]);
        engine.sync().unwrap();
    }
    let why = expect_err(engine.commit(BatchKind::Growing, vec![put(1, b"x", &large)]));
    assert_eq!(why, EngineError::NoSpace);
    let why =
        expect_err(engine.commit(BatchKind::Growing, vec![put(1, b"x", &vec![7; (1 << 20) + 1])]));
    assert!(matches!(why, EngineError::Io(_)), "{why}");
    engine.commit(BatchKind::Freeing, vec![remove(1, &[3])]).unwrap();
    engine.sync().unwrap();
    commit(&engine, vec![put(1, b"x", b"fits")]);
    engine.sync().unwrap();
}

/// A large batch that was cut short is there as a whole or not at all.
#[test]
fn large_batch_cut_short() {
    use store::{RowChanges, TxnOp, packed, swap};
    let url = made(&shared().url(&fresh(), ""));
    let engine = open(&url).unwrap();
    commit(&engine, vec![put(1, b"old", b""), put(1, b"gone", b"")]);
    drop(engine);
    let key = |suffix: &[u8]| encode(KeyRef::new(Table::Entry, 1, suffix));
    let mut rows = RowChanges::from([(key(b"gone"), None)]);
    rows.extend((0..500u32).map(|number| (key(&number.to_be_bytes()), Some(vec![5; 90].into()))));
    let whole = packed(&rows);
    // The parts alone are nothing.
    let (all, begin) = (
        whole.clone(),
        aside(&url, |client, shard| async move { store::fence(&client, &shard, soon()).await }),
    );
    aside(&url, move |client, shard| async move {
        for (at, part) in all.chunks(10_000).enumerate() {
            let op = [TxnOp::Put(shard.part(at), part)];
            let found = swap(&client, &shard, (begin, begin), &op)
                .await
                .map_err(client::RequestError::why)?;
            assert_eq!(found, begin);
        }
        Ok(())
    });
    let engine = open(&url).unwrap();
    assert_eq!(content(&engine).len(), 2);
    drop(engine);
    // With the fence it is in, though its rows are not.
    let parts = whole.chunks(10_000).count() as u32;
    aside(&url, move |client, shard| async move {
        let from = store::fence(&client, &shard, soon()).await?;
        let to = store::ShardRecord { position: from.position + 1, parts, ..from };
        assert_eq!(
            swap(&client, &shard, (from, to), &[]).await.map_err(client::RequestError::why)?,
            to
        );
        Ok(())
    });
    for _ in 0..2 {
        let engine = open(&url).unwrap();
        assert_eq!(engine.durable(), 2);
        let found = content(&engine);
        assert_eq!((found.len(), found.contains_key(&key(b"gone"))), (501, false));
        engine.sync().unwrap();
    }
    // What is left is a place of each part no longer.
    let fence = aside(&url, |client, shard| async move {
        assert_eq!(store::read(&client, &shard.part(0), soon()).await?, None);
        store::fence(&client, &shard, soon()).await
    });
    assert_eq!((fence.parts, fence.position), (0, 2));
}

/// A second process that opens the volume is refused, and one that takes it over fences the first.
#[test]
fn second_opener_and_takeover() {
    let url = made(&shared().url(&fresh(), ""));
    assert_eq!(holder(&url, 4), Ok(None));
    let first = Arc::new(open(&url).unwrap());
    let held = first.clone().claim().unwrap();
    commit(&*held, vec![put(1, b"a", b"1")]);
    let why = expect_err(open(&url));
    assert!(
        matches!(&why, EngineError::Refused(text) if text.contains("--take-over")
            && text.contains("kestrel node 4")),
        "{why}"
    );
    let before = holder(&url, 4).unwrap().unwrap();
    let second = open_with(&url, true).unwrap();
    assert!(second.epoch() > held.epoch());
    let after = holder(&url, 4).unwrap().unwrap();
    assert!(before != after, "{after}");
    commit(&second, vec![put(1, b"b", b"2")]);
    second.sync().unwrap();
    // It took the batch, but never reports it as durable.
    let lost = held.commit(BatchKind::Growing, vec![put(1, b"a", b"stale")]);
    if lost.is_ok() {
        let why = expect_err(held.sync());
        assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
    }
    assert!(matches!(
        expect_err(held.commit(BatchKind::Freeing, vec![remove(1, b"b")])),
        EngineError::Fenced { .. }
    ));
    second.forget();
    let mut expected = ExpectedRows::new();
    apply(&mut expected, &[put(1, b"a", b"1"), put(1, b"b", b"2")]);
    assert_eq!(content(&second), expected);
    // Within one process too.
    let raw = expect_err(first.commit(BatchKind::Growing, vec![put(1, b"a", b"raw")]));
    assert!(matches!(raw, EngineError::Fenced { .. }), "{raw}");
    drop((first, held));
    assert_eq!(holder(&url, 4), Ok(Some(after)), "the first lets go of what is not its own");
    drop(second);
    assert_eq!(holder(&url, 4), Ok(None));
}

#[test]
fn of_many_that_claim_at_once_one_is_left() {
    let url = made(&shared().url(&fresh(), ""));
    let engines: Vec<_> = thread::scope(|scope| {
        let opening: Vec<_> =
            (0..6).map(|_| scope.spawn(|| open_with(&url, true).unwrap())).collect();
        opening.into_iter().map(|opening| opening.join().unwrap()).collect()
    });
    let epochs: std::collections::BTreeSet<_> = engines.iter().map(Engine::epoch).collect();
    assert_eq!(epochs.len(), engines.len());
    let mut left = 0;
    for engine in &engines {
        let taken =
            engine.commit(BatchKind::Growing, vec![put(1, b"a", b"1")]).and_then(|_| engine.sync());
        match taken {
            Ok(()) => left += 1,
            Err(why) => assert!(matches!(why, EngineError::Fenced { .. }), "{why}"),
        }
    }
    assert_eq!(left, 1);
}

/// The engine refuses another volume, a newer format, and a volume that is missing.
#[test]
fn other_newer_and_missing_volumes() {
    let (server, prefix) = (shared(), fresh());
    let url = EtcdUrl::parse(&server.url(&prefix, "")).unwrap();
    let why = expect_err(open(&url));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("no volume")), "{why}");
    EtcdEngine::create(&url, UUID, 4).unwrap();
    EtcdEngine::create(&url, UUID, 5).unwrap();
    let why = expect_err(EtcdEngine::create(&url, *b"another volume!!", 4));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("another volume")), "{why}");
    let why = expect_err(EtcdEngine::open(url.clone(), UUID, 3, EtcdOptions::default(), no_hook()));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("node 3")), "{why}");
    // Keys of other programs stay.
    let theirs = EtcdUrl::parse(&server.url(&format!("{prefix}/4"), "")).unwrap();
    let why = expect_err(EtcdEngine::create(&theirs, UUID, 4));
    assert!(
        matches!(&why, EngineError::Refused(text) if text.contains("prefix of its own")),
        "{why}"
    );
    EtcdEngine::remove(&theirs, UUID).unwrap();
    EtcdEngine::remove(&url, *b"another volume!!").unwrap();
    let engine = open(&url).unwrap();
    let why = expect_err(EtcdEngine::remove(&url, UUID));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("open")), "{why}");
    drop(engine);
    let key = format!("{}/meta", url.prefix);
    let newer = br#"{"format":9,"volume":"30313233343536373839616263646566"}"#;
    aside(&url, move |client, _| async move {
        let put = serde_json::json!({ "key": client::encoded(key.as_bytes()),
            "value": client::encoded(newer) });
        client.request("kv/put", &put, soon()).await.map_err(client::RequestError::why).map(drop)
    });
    let why = expect_err(open(&url));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("newer")), "{why}");
    let away = EtcdUrl::parse("etcd://me:s3cret@127.0.0.1:1/x?deadline=1s").unwrap();
    let why = expect_err(open(&away));
    assert!(
        matches!(&why, EngineError::Io(text) if text.contains("127.0.0.1:1")
            && !text.contains("s3cret")),
        "{why}"
    );
    assert!(holder(&away, 4).is_err());
}

#[test]
fn what_is_removed_is_gone() {
    let url = made(&shared().url(&fresh(), ""));
    let engine = open(&url).unwrap();
    commit(&engine, vec![put(1, b"a", b"1")]);
    drop(engine);
    EtcdEngine::remove(&url, UUID).unwrap();
    EtcdEngine::create(&url, *b"another volume!!", 4).unwrap();
    let again =
        EtcdEngine::open(url, *b"another volume!!", 4, EtcdOptions::default(), no_hook()).unwrap();
    assert_eq!((content(&again).len(), again.durable()), (0, 0));
}

/// Commits rows one after another, each durable before the next; ends when `until` is true, and
/// returns how many.
fn write_all(engine: &EtcdEngine, until: &dyn Fn(u32) -> bool) -> u32 {
    let mut number = 0;
    while !until(number) {
        let bytes = number.to_be_bytes();
        commit(engine, vec![put(1, &bytes, &bytes), put(2, b"last", &bytes)]);
        if number % 3 == 0 {
            engine.sync().unwrap();
        }
        number += 1;
    }
    engine.sync().unwrap();
    number
}

/// All rows of [`write_all`], each once.
fn verify(engine: &EtcdEngine, count: u32) {
    let mut found = 0;
    engine
        .scan(Table::Entry, 1, None, &mut |suffix, value, _| {
            assert_eq!(
                (suffix, value),
                (&u32::to_be_bytes(found)[..], &u32::to_be_bytes(found)[..])
            );
            found += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(found, count);
}

/// Writes while something happens to etcd, and looks whether everything is there once.
fn written_while(url: &EtcdUrl, happening: impl FnOnce()) {
    let engine = open(url).unwrap();
    let stop = AtomicBool::new(false);
    let count = thread::scope(|scope| {
        let stopper = StopOnDrop::new(&stop);
        let writing = scope.spawn(|| write_all(&engine, &|_| stop.load(Ordering::Relaxed)));
        happening();
        thread::sleep(Duration::from_millis(300));
        drop(stopper);
        writing.join().unwrap()
    });
    assert!(count > 20, "{count}");
    verify(&engine, count);
    drop(engine);
    verify(&open(url).unwrap(), count);
}

/// An etcd that dies under load and comes back has each commit once.
#[test]
fn etcd_death_under_load() {
    let mut server = Server::start(1);
    let url = made(&server.url("volume", ""));
    written_while(&url, || {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(300));
            server.kill(0);
            server.resume(0);
        }
    });
}

#[test]
fn any_member_may_die_or_hang() {
    let mut server = Server::start(3);
    let url = made(&server.url("volume", ""));
    written_while(&url, || {
        for at in 0..3 {
            thread::sleep(Duration::from_millis(300));
            server.kill(at);
            thread::sleep(Duration::from_secs(2));
            server.resume(at);
        }
        for at in 0..3 {
            let signal = |name: &str| {
                let mut kill = std::process::Command::new("kill");
                assert!(
                    kill.args([name, &server.process(at).to_string()]).status().unwrap().success()
                );
            };
            thread::sleep(Duration::from_secs(2));
            signal("-STOP");
            thread::sleep(Duration::from_secs(4));
            signal("-CONT");
        }
    });
}

#[test]
fn answers_that_are_lost_are_neither_lost_nor_doubled() {
    let (server, prefix) = (shared(), fresh());
    made(&server.url(&prefix, ""));
    let relay = Relay::start(server.port());
    let url = EtcdUrl::parse(&format!("etcd://127.0.0.1:{}/{prefix}", relay.port)).unwrap();
    let engine = open(&url).unwrap();
    let count = write_all(&engine, &|number| {
        // What is sent next reaches etcd; the answer never comes back, nor anything on that
        // connection.
        if number % 50 == 20 {
            relay.swallow_next_answer();
        }
        number == 400
    });
    assert!(relay.swallowed() > 3, "{} answers were lost", relay.swallowed());
    verify(&engine, count);
    drop(engine);
    for _ in 0..3 {
        // One of those of opening.
        relay.swallow_next_answer();
        verify(&open(&url).unwrap(), count);
    }
}

/// The engine refuses an etcd that has lost what was durable, for good.
#[test]
fn etcd_that_lost_durable_commits() {
    let url = made(&shared().url(&fresh(), ""));
    let engine = open(&url).unwrap();
    write_all(&engine, &|number| number == 20);
    aside(&url, |client, shard| async move {
        let from = store::fence(&client, &shard, soon()).await?;
        let to = store::ShardRecord { position: 7, ..from };
        store::swap(&client, &shard, (from, to), &[])
            .await
            .map(drop)
            .map_err(client::RequestError::why)
    });
    let lost = engine.commit(BatchKind::Growing, vec![put(1, b"x", b"y")]);
    let why = if lost.is_ok() { expect_err(engine.sync()) } else { expect_err(lost) };
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("old state")), "{why}");
    assert_eq!(expect_err(engine.commit(BatchKind::Freeing, vec![remove(1, b"x")])), why);
}

#[test]
fn reads_after_another_claim() {
    let url = made(&shared().url(&fresh(), ""));
    let first = open(&url).unwrap();
    commit(&first, vec![put(1, b"a", b"1")]);
    first.sync().unwrap();
    let _second = open_with(&url, true).unwrap();
    let until = soon();
    let key = kestrel_types::key::Key::new(Table::Entry, 1, b"a");
    while first.get_many(&[key.borrow()], &mut |_, _| {}).is_ok() {
        assert!(Instant::now() < until, "stale rows are read");
        thread::sleep(Duration::from_millis(50));
    }
    let why = expect_err(first.get_many(&[key.borrow()], &mut |_, _| {}));
    assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
    expect_err(first.scan(Table::Entry, 1, None, &mut |_, _, _| ControlFlow::Continue(())));
    expect_err(first.scan_table(Table::Entry, None, &mut |_, _| ControlFlow::Continue(())));
}

/// The engine notices by its silence that an etcd is away, and there is only one holder all the
/// while.
#[test]
fn silence_of_an_etcd_that_is_away() {
    let mut server = Server::start(1);
    let url = made(&server.url("volume", ""));
    let engine = open(&url).unwrap();
    commit(&engine, vec![put(1, b"a", b"1")]);
    engine.sync().unwrap();
    let until = soon();
    while engine.silence() > Duration::from_millis(500) {
        assert!(Instant::now() < until);
    }
    server.kill(0);
    thread::sleep(Duration::from_secs(4));
    assert!(engine.silence() > Duration::from_secs(2), "{:?}", engine.silence());
    // With nothing to write it does not matter how long it is away.
    let key = kestrel_types::key::Key::new(Table::Entry, 1, b"a");
    engine.get_many(&[key.borrow()], &mut |_, row| assert_eq!(row.value, Some(&b"1"[..]))).unwrap();
    server.resume(0);
    commit(&engine, vec![put(1, b"b", b"2")]);
    engine.sync().unwrap();
    assert!(engine.silence() < Duration::from_secs(1));
    // Longer than the lease lasts.
    thread::sleep(election::TTL + Duration::from_secs(2));
    assert!(holder(&url, 4).unwrap().is_some());
    // Its key was lost.
    aside(&url, |client, shard| async move {
        let key = serde_json::json!({ "key": client::encoded(shard.holder().as_bytes()) });
        client
            .request("kv/deleterange", &key, soon())
            .await
            .map(drop)
            .map_err(client::RequestError::why)
    });
    drop(engine);
    assert_eq!(holder(&url, 4), Ok(None));
}

#[test]
fn users_and_passwords() {
    let server = Server::start(1);
    let plain = made(&server.url("volume", ""));
    aside(&plain, |client, _| async move {
        for (path, body) in [
            ("auth/user/add", serde_json::json!({ "name": "root", "password": "s3cret" })),
            ("auth/role/add", serde_json::json!({ "name": "root" })),
            ("auth/user/grant", serde_json::json!({ "user": "root", "role": "root" })),
            ("auth/user/add", serde_json::json!({ "name": "other", "password": "s3cret" })),
            ("auth/enable", serde_json::json!({})),
        ] {
            client.request(path, &body, soon()).await.map_err(client::RequestError::why)?;
        }
        Ok(())
    });
    let as_user = |who: &str| {
        EtcdUrl::parse(&format!("etcd://{who}@127.0.0.1:{}/volume", server.port())).unwrap()
    };
    for (url, expected) in [
        (plain, "name a user"),
        (as_user("root:wr0ng"), "ETCDCTL_PASSWORD"),
        (as_user("other:s3cret"), "role"),
    ] {
        let why = expect_err(open(&url));
        assert!(
            matches!(&why, EngineError::Refused(text) if text.contains(expected)
                && !text.contains("wr0ng")),
            "{why}"
        );
    }
    let url = as_user("root:s3cret");
    let engine = open(&url).unwrap();
    let count = write_all(&engine, &|number| number == 10);
    drop(engine);
    verify(&open(&url).unwrap(), count);
}

#[test]
fn encrypted_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let signed = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    std::fs::write(&certificate, signed.cert.pem()).unwrap();
    std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let server = Server::with_tls([certificate.clone(), key.clone()]);
    let url = |more: &str| format!("etcds://127.0.0.1:{}/volume?deadline=1s{more}", server.port());
    let trusted = made(&url(&format!("&ca={}", certificate.display())));
    let engine = open(&trusted).unwrap();
    let count = write_all(&engine, &|number| number == 10);
    drop(engine);
    verify(&open(&trusted).unwrap(), count);
    // The system's roots have not signed it.
    let why = expect_err(open(&EtcdUrl::parse(&url("")).unwrap()));
    assert!(why.to_string().contains("certificate"), "{why}");
    for (file, expected) in [(&key, "no certificate"), (&dir.path().join("absent"), "absent")] {
        let url = EtcdUrl::parse(&url(&format!("&ca={}", file.display()))).unwrap();
        let why = expect_err(open(&url));
        assert!(matches!(&why, EngineError::Refused(text) if text.contains(expected)), "{why}");
    }
}

#[test]
fn taps_see_every_batch_in_order() {
    let url = made(&shared().url(&fresh(), ""));
    let engine = open(&url).unwrap();
    commit(&engine, vec![put(1, b"before", b"")]);
    let seen = Arc::new(Mutex::new(ExpectedRows::new()));
    let tapped = seen.clone();
    let guard = engine.tap(Box::new(move |batch| apply(&mut tapped.lock(), batch)));
    thread::scope(|scope| {
        for thread in 0..3u8 {
            let engine = &engine;
            scope.spawn(move || {
                for number in 0..50u8 {
                    commit(
                        engine,
                        vec![put(2, &[number], &[thread]), put(2, b"last", &[thread, number])],
                    );
                }
            });
        }
    });
    drop(guard);
    commit(&engine, vec![put(3, b"after", b"")]);
    let mut expected = content(&engine);
    expected.retain(|key, _| key[8] == 2);
    assert_eq!(*seen.lock(), expected);
}
