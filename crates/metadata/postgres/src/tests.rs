//! Tests against a real PostgreSQL.
//!
//! | file | what it has |
//! | --- | --- |
//! | `tests/server.rs` | PostgreSQL servers in temporary directories |
//! | `tests/relay.rs` | a relay that loses answers |

mod relay;
mod server;

use kestrel_testkit::stop::StopOnDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use kestrel_engine::exercise::{
    EngineOp, ExpectedRows, apply, check, commit, content, op, put, remove,
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
    format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn options() -> PgOptions {
    PgOptions { memory_bytes: 256 << 10, take_over: false }
}

fn made(url: &str) -> PgUrl {
    let url = PgUrl::parse(url).unwrap();
    PgEngine::create(&url, UUID, 0).unwrap();
    url
}

fn open(url: &PgUrl) -> Result<PgEngine, EngineError> {
    PgEngine::open(url.clone(), UUID, 0, options(), no_hook())
}

fn expect_err<T>(result: Result<T, EngineError>) -> EngineError {
    match result {
        Ok(_) => panic!("must fail"),
        Err(why) => why,
    }
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
fn what_is_durable_is_read_by_the_next_one() {
    let url = made(&shared().url(&fresh(), ""));
    let engine = open(&url).unwrap();
    let mut expected = ExpectedRows::new();
    for round in 0..200u32 {
        let batch: Vec<Mutation> = (0..40u32)
            .map(|number| {
                put(u64::from(number % 7), &(round * 40 + number).to_be_bytes(), &[round as u8; 90])
            })
            .chain([remove(1, &(round * 20).to_be_bytes())])
            .collect();
        apply(&mut expected, &batch);
        let position = engine.commit(BatchKind::Growing, batch).unwrap();
        assert_eq!(position, u64::from(round) + 1);
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    engine.on_durable(200, Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap().unwrap();
    assert_eq!(engine.durable(), 200);
    let stats = engine.stats();
    assert!(stats.syncs < 200, "{} transactions: nothing was put together", stats.syncs);
    drop(engine);
    let again = open(&url).unwrap();
    assert_eq!(again.durable(), 200);
    assert_eq!(content(&again), expected);
}

/// A second process that opens the volume is refused, and one that takes it over fences the first.
#[test]
fn second_opener_and_takeover() {
    let url = made(&shared().url(&fresh(), ""));
    let first = Arc::new(open(&url).unwrap());
    let holder = first.clone().claim().unwrap();
    commit(&*holder, vec![put(1, b"a", b"1")]);
    let why = expect_err(open(&url));
    assert!(
        matches!(&why, EngineError::Refused(text) if text.contains("--take-over")
            && text.contains("kestrel")),
        "{why}"
    );
    let second =
        PgEngine::open(url.clone(), UUID, 0, PgOptions { take_over: true, ..options() }, no_hook())
            .unwrap();
    assert!(second.epoch() > holder.epoch());
    commit(&second, vec![put(1, b"b", b"2")]);
    second.sync().unwrap();
    // It took the batch, but never reports it as durable.
    let lost = holder.commit(BatchKind::Growing, vec![put(1, b"a", b"stale")]);
    if lost.is_ok() {
        let why = expect_err(holder.sync());
        assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
    }
    assert!(matches!(
        expect_err(holder.commit(BatchKind::Freeing, vec![remove(1, b"b")])),
        EngineError::Fenced { .. }
    ));
    second.forget();
    let expected = ExpectedRows::from_iter([put(1, b"a", b"1"), put(1, b"b", b"2")].map(|row| {
        let mut key = Vec::new();
        row.key.borrow().encode_into(&mut key);
        (key, row.value.unwrap().to_vec())
    }));
    assert_eq!(content(&second), expected);
    // Within one process too.
    let raw = expect_err(first.commit(BatchKind::Growing, vec![put(1, b"a", b"raw")]));
    assert!(matches!(raw, EngineError::Fenced { .. }), "{raw}");
}

/// The engine refuses another volume, a newer format, and a volume that is missing.
#[test]
fn other_newer_and_missing_volumes() {
    let (server, schema) = (shared(), fresh());
    let url = PgUrl::parse(&server.url(&schema, "")).unwrap();
    let why = expect_err(open(&url));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("has no volume")), "{why}");
    PgEngine::create(&url, UUID, 0).unwrap();
    let why = expect_err(PgEngine::create(&url, *b"another volume!!", 0));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("another volume")), "{why}");
    let why = expect_err(PgEngine::open(url.clone(), UUID, 3, options(), no_hook()));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("node 3")), "{why}");
    server.query(&format!("UPDATE {schema}.meta SET version = 9"));
    let why = expect_err(open(&url));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("newer")), "{why}");
    let why =
        expect_err(open(&PgUrl::parse("postgres://kestrel@127.0.0.1:1/x?deadline=1s").unwrap()));
    assert!(
        matches!(&why, EngineError::Io(text) if text.contains("connecting to \
            postgres://kestrel@127.0.0.1:1/x")),
        "{why}"
    );
}

/// A schema that holds anything else is refused, and foreign tables stay.
#[test]
fn schemas_with_foreign_tables() {
    let server = Server::start();
    server.query(
        "CREATE TABLE public.customers (name text); INSERT INTO customers VALUES ('theirs'); \
         CREATE SCHEMA kinds; CREATE TYPE kinds.mood AS ENUM ('sad'); \
         CREATE SCHEMA alike; CREATE TABLE alike.meta (a int); CREATE SCHEMA part; CREATE TABLE \
         part.row (a int); \
         CREATE SCHEMA empty",
    );
    for (schema, shown) in
        [("public", "customers"), ("kinds", "mood"), ("alike", "alike.meta"), ("part", "part.row")]
    {
        let url = PgUrl::parse(&server.url(schema, "")).unwrap();
        let why = expect_err(PgEngine::create(&url, UUID, 0));
        assert!(
            matches!(&why, EngineError::Refused(text) if text.contains(shown)
                && text.contains("?schema=")),
            "{why}"
        );
        PgEngine::remove(&url, UUID).unwrap();
    }
    let left = "SELECT string_agg(n.nspname || '.' || c.relname, ' ' ORDER BY 1) FROM pg_class AS \
                c JOIN pg_namespace AS n \
                ON n.oid = relnamespace WHERE relkind IN ('r', 'v') AND nspname !~ \
                '^pg_|information_schema'";
    assert_eq!(server.query(left).split(' ').count(), 3, "{}", server.query(left));
    let url = made(&server.url("empty", ""));
    // Each of a cluster's nodes does so.
    PgEngine::create(&url, UUID, 1).unwrap();
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'empty'";
    // Another program adds to it later.
    server.query(
        "CREATE TABLE empty.guest AS SELECT 5 AS a; CREATE VIEW empty.watch AS SELECT * FROM \
         empty.fence",
    );
    assert!(matches!(expect_err(PgEngine::create(&url, UUID, 2)), EngineError::Refused(_)));
    let why = expect_err(PgEngine::remove(&url, UUID));
    assert!(matches!(&why, EngineError::Io(text) if text.contains("2BP01")), "{why}");
    drop(open(&url).unwrap());
    server.query("DROP VIEW empty.watch");
    PgEngine::remove(&url, UUID).unwrap();
    assert_eq!(server.query("SELECT a, to_regclass('empty.row') IS NULL FROM empty.guest"), "5|t");
    server.query("DROP TABLE empty.guest");
    PgEngine::create(&url, UUID, 0).unwrap();
    PgEngine::remove(&url, UUID).unwrap();
    assert_eq!(server.query(schemas), "0");
    assert_eq!(server.query("SELECT name FROM public.customers"), "theirs");
}

/// Commits rows one after another, each durable before the next; ends when `until` is true, and
/// returns how many.
fn write_all(engine: &PgEngine, until: &dyn Fn(u32) -> bool) -> u32 {
    let mut number = 0;
    while !until(number) {
        commit(
            engine,
            vec![
                put(1, &number.to_be_bytes(), &number.to_be_bytes()),
                put(2, b"last", &number.to_be_bytes()),
            ],
        );
        if number % 3 == 0 {
            engine.sync().unwrap();
        }
        number += 1;
    }
    engine.sync().unwrap();
    number
}

/// All rows of [`write_all`], each once, by what the database has.
fn verify(engine: &PgEngine, count: u32) {
    engine.forget();
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

/// A server that dies under load and comes back has each commit once.
#[test]
fn server_death_under_load() {
    let mut server = Server::start();
    let url = made(&server.url("volume", "&deadline=60s"));
    let engine = open(&url).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let count = thread::scope(|scope| {
        let stopper = StopOnDrop::new(&stop);
        let writing = scope.spawn(|| write_all(&engine, &|_| stop.load(Ordering::Relaxed)));
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(300));
            server.kill();
            server.resume();
        }
        thread::sleep(Duration::from_millis(300));
        drop(stopper);
        writing.join().unwrap()
    });
    verify(&engine, count);
    drop(engine);
    verify(&open(&url).unwrap(), count);
}

#[test]
fn answers_that_are_lost_are_neither_lost_nor_doubled() {
    let server = shared();
    let schema = fresh();
    made(&server.url(&schema, ""));
    let relay = Relay::start(server.port);
    let url = PgUrl::parse(&format!(
        "postgres://kestrel@127.0.0.1:{}/postgres?schema={schema}",
        relay.port
    ))
    .unwrap();
    let engine = open(&url).unwrap();
    let count = write_all(&engine, &|number| {
        // What is sent next reaches the server; the answer never comes back, nor anything on that
        // connection.
        if number % 50 == 20 {
            relay.swallow_next_answer();
        }
        number == 400
    });
    assert!(relay.swallowed() > 3, "{} answers were lost", relay.swallowed());
    verify(&engine, count);
}

/// The engine refuses a database that has lost what was durable, for good.
#[test]
fn database_that_lost_durable_commits() {
    let server = Server::start();
    let url = made(&server.url("volume", "&deadline=20s"));
    let engine = open(&url).unwrap();
    write_all(&engine, &|number| number == 20);
    // As if a standby had been promoted that was behind, with everybody's connections gone.
    server.query(
        "UPDATE volume.fence SET position = 7; SELECT pg_terminate_backend(pid) FROM \
         pg_stat_activity \
         WHERE pid <> pg_backend_pid() AND application_name LIKE 'kestrel%'",
    );
    let lost = engine.commit(BatchKind::Growing, vec![put(1, b"x", b"y")]);
    let why = if lost.is_ok() { expect_err(engine.sync()) } else { expect_err(lost) };
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("lost changes")), "{why}");
    assert_eq!(expect_err(engine.commit(BatchKind::Freeing, vec![remove(1, b"x")])), why);
}

/// What becomes of a batch that no standby has, and goes wrong meanwhile in the way given.
fn is_acknowledged_only_with_the_standby(wrong: impl Fn(&mut Server)) {
    let mut primary = Server::start();
    let mut standby = primary.standby();
    let url = made(&primary.url("volume", "&deadline=120s"));
    let engine = open(&url).unwrap();
    write_all(&engine, &|number| number == 20);
    standby.kill();
    let position = commit(&engine, vec![put(3, b"late", b"")]);
    let (sender, acknowledged) = mpsc::sync_channel(1);
    engine.on_durable(position, Box::new(move |result| sender.send(result).unwrap()));
    for _ in 0..3 {
        primary.wait_for("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
        wrong(&mut primary);
    }
    // It is visible, and still not more than that.
    primary.wait_for(&format!("SELECT position = {position} FROM volume.fence"));
    thread::sleep(Duration::from_secs(1));
    assert!(acknowledged.try_recv().is_err(), "acknowledged, and on the primary alone");
    assert_eq!(engine.durable(), position - 1);
    standby.resume();
    acknowledged.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
    standby.wait_for(&format!("SELECT position = {position} FROM volume.fence"));
    commit(&engine, vec![put(3, b"later", b"")]);
    engine.sync().unwrap();
}

/// A primary that restarts acknowledges nothing without its standby.
#[test]
fn restart_of_the_primary_without_standby() {
    is_acknowledged_only_with_the_standby(|primary| {
        primary.kill();
        primary.resume();
    });
}

/// A cancelled wait for the standby acknowledges nothing.
#[test]
fn cancelled_wait_for_the_standby() {
    is_acknowledged_only_with_the_standby(|primary| {
        primary.query(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
        );
        thread::sleep(Duration::from_millis(300));
    });
}

/// A session that ends while it waits for the standby acknowledges nothing.
#[test]
fn session_ended_in_wait_for_the_standby() {
    is_acknowledged_only_with_the_standby(|primary| {
        primary.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
        );
        thread::sleep(Duration::from_millis(300));
    });
}

/// Reads a row that is in memory, in each of the ways, until that fails.
fn read_until_it_fails(engine: &PgEngine) -> EngineError {
    let until = Instant::now() + Duration::from_secs(10);
    let key = kestrel_types::key::Key::new(Table::Entry, 1, b"a");
    while engine.get_many(&[key.borrow()], &mut |_, _| {}).is_ok() {
        assert!(Instant::now() < until, "stale rows are read");
        thread::sleep(Duration::from_millis(50));
    }
    expect_err(engine.scan(Table::Entry, 1, None, &mut |_, _, _| ControlFlow::Continue(())));
    expect_err(engine.scan_table(Table::Entry, None, &mut |_, _| ControlFlow::Continue(())));
    expect_err(engine.get_many(&[key.borrow()], &mut |_, _| {}))
}

#[test]
fn reads_after_another_claim() {
    let (server, schema) = (shared(), fresh());
    let url = made(&server.url(&schema, ""));
    let first = open(&url).unwrap();
    commit(&first, vec![put(1, b"a", b"1")]);
    first.sync().unwrap();
    // By a process that ends its session.
    let second =
        PgEngine::open(url.clone(), UUID, 0, PgOptions { take_over: true, ..options() }, no_hook())
            .unwrap();
    commit(&second, vec![put(1, b"a", b"2")]);
    second.sync().unwrap();
    let why = read_until_it_fails(&first);
    assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
    // By one that did not find it.
    server.query(&format!("UPDATE {schema}.fence SET epoch = epoch + 1"));
    let why = read_until_it_fails(&second);
    assert!(matches!(why, EngineError::Fenced { .. }), "{why}");
}

/// While nothing is written, a lost session is made again with its lock.
#[test]
fn lost_session_without_writes() {
    let mut server = Server::start();
    let url = made(&server.url("volume", "&deadline=2s"));
    let engine = open(&url).unwrap();
    commit(&engine, vec![put(1, b"a", b"1")]);
    engine.sync().unwrap();
    let held = "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND granted";
    server.query("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'");
    server.wait_for(held);
    let why = expect_err(open(&url));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("--take-over")), "{why}");
    // With nothing to write it does not matter how long the database is away.
    server.kill();
    thread::sleep(Duration::from_secs(5));
    let key = kestrel_types::key::Key::new(Table::Entry, 1, b"a");
    let read =
        engine.get_many(&[key.borrow()], &mut |_, row| assert_eq!(row.value, Some(&b"1"[..])));
    read.unwrap();
    server.resume();
    server.wait_for(held);
    commit(&engine, vec![put(1, b"b", b"2")]);
    engine.sync().unwrap();
}

/// Waits for something.
fn until(what: &str, seconds: u64, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn holder_of_a_shard() {
    let url = made(&shared().url(&fresh(), ""));
    assert_eq!(holder(&url, 0).unwrap(), None);
    PgEngine::add_node(&url, UUID, 3).unwrap();
    let three = PgEngine::open(url.clone(), UUID, 3, options(), no_hook()).unwrap();
    assert!(three.is_shared());
    assert_eq!(holder(&url, 0).unwrap(), None);
    let holder_name = holder(&url, 3).unwrap().unwrap();
    assert!(
        holder_name.contains(&format!("kestrel node 3 {}", std::process::id())),
        "{holder_name}"
    );
    commit(&three, vec![put(1, b"a", b"1")]);
    drop(three);
    until("its session ends", 10, || holder(&url, 3).unwrap().is_none());
    // Nothing of the node's rows goes when the node is made again.
    PgEngine::add_node(&url, UUID, 3).unwrap();
    let again = PgEngine::open(url.clone(), UUID, 3, options(), no_hook()).unwrap();
    assert_eq!(content(&again).len(), 1);
    let why = expect_err(PgEngine::add_node(&url, *b"another volume!!", 4));
    assert!(matches!(why, EngineError::Refused(_)), "{why}");
    let elsewhere = PgUrl::parse(&shared().url(&fresh(), "")).unwrap();
    let why = expect_err(PgEngine::add_node(&elsewhere, UUID, 4));
    assert!(matches!(&why, EngineError::Refused(text) if text.contains("has no volume")), "{why}");
    assert!(holder(&PgUrl::parse("postgres://kestrel@127.0.0.1:1/x").unwrap(), 0).is_err());
}

/// An engine that is cut off loses its shard, and reports the database as silent.
#[test]
fn engine_cut_off_from_its_database() {
    let (server, schema) = (shared(), fresh());
    let url = made(&server.url(&schema, ""));
    let relay = Relay::start(server.port);
    let there = format!("postgres://kestrel@127.0.0.1:{}/postgres?schema={schema}", relay.port);
    let engine = open(&PgUrl::parse(&there).unwrap()).unwrap();
    thread::sleep(Duration::from_millis(2500));
    assert!(engine.silence() < Duration::from_secs(1), "{:?}", engine.silence());
    relay.state.frozen.store(true, Ordering::SeqCst);
    until("it is silent", 10, || engine.silence() > Duration::from_secs(2));
    // The machine of the relay still answers for the one behind it.
    until("the session ends", 15, || holder(&url, 0).unwrap().is_none());
    relay.state.frozen.store(false, Ordering::SeqCst);
    until("it answers again", 10, || engine.silence() == Duration::ZERO);
    until("the shard is held again", 10, || holder(&url, 0).unwrap().is_some());
    commit(&engine, vec![put(1, b"a", b"1")]);
    engine.sync().unwrap();
}

/// A database that waits for its standby is not silent.
#[test]
fn no_silence_while_waiting_for_the_standby() {
    let mut primary = Server::start();
    let mut standby = primary.standby();
    let engine = open(&made(&primary.url("volume", ""))).unwrap();
    standby.kill();
    let position = commit(&engine, vec![put(1, b"a", b"1")]);
    for _ in 0..30 {
        thread::sleep(Duration::from_millis(100));
        assert!(engine.silence() < Duration::from_millis(1500), "{:?}", engine.silence());
    }
    assert!(engine.durable() < position);
    primary.kill();
    until("it is silent", 10, || engine.silence() > Duration::from_secs(2));
    primary.resume();
    standby.resume();
    until("it answers", 30, || engine.silence() == Duration::ZERO);
    engine.sync().unwrap();
}

/// With TLS, only a database that proves its name is believed.
#[test]
fn tls_name_of_the_database() {
    let mut server = Server::start();
    let authority = server.encrypt();
    let url = |host: &str, more: &str| {
        format!(
            "postgres://kestrel@{host}:{}/postgres?schema=volume&deadline=1s&sslmode=verify-full\
             {more}",
            server.port
        )
    };
    let by_authority = format!("&sslrootcert={}", authority.display());
    let trusted = made(&url("localhost", &by_authority));
    let engine = open(&trusted).unwrap();
    commit(&engine, vec![put(1, b"a", b"1")]);
    engine.sync().unwrap();
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE \
                     application_name LIKE 'kestrel%'";
    assert_eq!(server.query(encrypted), "t");
    assert!(holder(&trusted, 0).unwrap().is_some());
    drop(engine);
    for (url, why) in [
        (url("127.0.0.1", &by_authority), "certificate not valid for name"),
        (url("localhost", ""), "certificate"),
        (url("localhost", "&sslrootcert=/nonexistent"), "/nonexistent"),
    ] {
        let text = expect_err(open(&PgUrl::parse(&url).unwrap())).to_string();
        assert!(text.contains(why), "{text}");
    }
    // The engine never falls back to a connection in clear.
    server.query("ALTER SYSTEM SET ssl = off");
    server.query("SELECT pg_reload_conf()");
    server.wait_for("SELECT setting = 'off' FROM pg_settings WHERE name = 'ssl'");
    let text = expect_err(open(&trusted)).to_string();
    assert!(text.contains("TLS"), "{text}");
}

/// A database that fails as full for every statement that adds a row, until the trigger `full`
/// goes.
fn fill(server: &Server, schema: &str) {
    server.query(&format!(
        "CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full'; END $$; \
         CREATE TRIGGER \"full\" BEFORE INSERT ON {schema}.row FOR EACH ROW EXECUTE FUNCTION \
         {schema}.full()"
    ));
}

#[test]
fn a_full_database_is_waited_for_on_the_same_session() {
    let server = Server::start();
    let url = made(&server.url("volume", "&deadline=1s"));
    let engine = open(&url).unwrap();
    commit(&engine, vec![put(1, b"a", b"1"), put(1, b"old", b"")]);
    engine.sync().unwrap();
    let holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'";
    let session = server.query(holder);
    fill(&server, "volume");
    let stuck = commit(&engine, vec![put(1, b"b", b"2")]);
    let until = Instant::now() + Duration::from_secs(10);
    while engine.commit(BatchKind::Growing, vec![put(1, b"b", b"3")]).is_ok() {
        assert!(Instant::now() < until, "what grows is taken");
        thread::sleep(Duration::from_millis(20));
    }
    let grown = engine.commit(BatchKind::Growing, vec![put(1, b"d", b"4")]);
    assert!(matches!(expect_err(grown), EngineError::NoSpace));
    let freed = engine.commit(BatchKind::Freeing, vec![remove(1, b"old")]).unwrap();
    // Well above the deadline.
    let confirmed = engine.confirmations();
    thread::sleep(Duration::from_secs(4));
    assert!(engine.confirmations() >= confirmed + 3, "it does not say whose it is");
    let freed = engine.commit(BatchKind::Freeing, vec![remove(1, b"a")]).unwrap().max(freed);
    // In order: what frees does not overtake what grew.
    assert_eq!(engine.durable(), stuck - 1);
    assert_eq!(server.query(holder), session);
    server.query("DROP TRIGGER \"full\" ON volume.row");
    engine.sync().unwrap();
    assert!(engine.durable() >= freed);
    assert_eq!(server.query(holder), session);
    commit(&engine, vec![put(1, b"d", b"4")]);
    engine.sync().unwrap();
    engine.forget();
    let suffixes: Vec<_> = content(&engine).into_keys().map(|key| key[9..].to_vec()).collect();
    assert_eq!(suffixes, [b"b", b"d"]);
}

/// Closing on a full database takes no longer than the deadline.
#[test]
fn close_on_a_full_database() {
    let server = Server::start();
    let url = made(&server.url("volume", "&deadline=1s"));
    let engine = open(&url).unwrap();
    fill(&server, "volume");
    commit(&engine, vec![put(1, b"a", b"1")]);
    thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    drop(engine);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
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
