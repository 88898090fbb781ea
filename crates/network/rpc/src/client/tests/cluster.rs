//! A client with several connections; its completions submit calls over the others.

use super::*;

const BYTES: usize = 48 * 1024;

/// Answers everything with much.
fn generous(message: ToServer, outbox: &Arc<dyn Outbox>) {
    match message {
        ToServer::Call(call) => {
            outbox.send(&encoded(&reply(call.id, Ok(Answer::Bytes(vec![9; BYTES].into())))));
        }
        other => obliging(other, outbox),
    }
}

fn large() -> Request {
    let (name, value) = (b"user.x".as_slice().into(), vec![1; BYTES].into());
    request(Op::SetXattr(InodeRef::by_id(9), name, value, XattrFlags::default()))
}

/// Completions that make many calls over another connection do not wait for room there. The thread
/// that reads one connection writes to the other, and the other way round: were each to wait for
/// room, neither would read what makes room.
#[test]
fn completions_that_call_over_each_other() {
    const EACH: usize = 400;
    let config = || ListenerConfig { unsent_bytes_max: 1 << 20, ..ListenerConfig::default() };
    let nodes = [(); 2].map(|()| serving(Script::new(generous), config()));
    let remotes = nodes.each_ref().map(|node| connect(node).0);
    let ended = Arc::new(AtomicUsize::new(0));
    let ask = |remote: &Arc<Remote>, ended: &Arc<AtomicUsize>| {
        let ended = ended.clone();
        remote.submit(
            large(),
            Box::new(move |reply| {
                assert!(matches!(reply, Ok(Answer::Bytes(bytes)) if bytes.len() == BYTES));
                ended.fetch_add(1, Ordering::SeqCst);
            }),
        );
    };
    for (remote, other) in [(0, 1), (1, 0)] {
        let (other, ended) = (remotes[other].clone(), ended.clone());
        let burst = move |_| (0..EACH).for_each(|_| ask(&other, &ended));
        remotes[remote].submit(stat(), Box::new(burst));
    }
    eventually("all are answered", || ended.load(Ordering::SeqCst) == 2 * EACH);
    let stats: RemoteStats = remotes.iter().map(|remote| remote.stats()).sum();
    assert_eq!((stats.calls as usize, stats.failed, stats.reconnects), (2 * EACH + 2, 0, 0));
    remotes.iter().for_each(|remote| remote.close());
}

/// A connection that has settled looks for its node at the last address and at the given one.
#[test]
fn addresses_of_a_settled_connection() {
    let [one, two, three] =
        [(); 3].map(|()| serving(Script::new(obliging), ListenerConfig::default()));
    let gone = listen().local_addr().unwrap();
    let (remote, _) = Remote::connect(
        config(&[gone, one.address(), two.address()], LONG),
        Arc::new(Notes::default()),
    )
    .unwrap();
    assert_eq!(remote.address(), one.address().to_string());
    remote.settle(&three.address().to_string());
    drop((one, two));
    eventually("it is at the other address", || {
        remote.address() == three.address().to_string() && remote.is_up()
    });
    assert_eq!(remote.call(stat()), Ok(Answer::Done));
    remote.close();
}
