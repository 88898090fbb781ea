//! What a token costs a call: nanoseconds for each, with everything that a token can say.

use std::hint::black_box;
use std::time::Instant;

use kestrel_server::grant::Grant;
use kestrel_server::granted::{GrantedInodes, Place, Tree};
use kestrel_server::opens::Opens;
use kestrel_types::ids::InodeId;
use kestrel_types::name::{InodeRef, Name, PathRef};
use kestrel_types::request::{Creds, Op, Request};
use kestrel_types::token::{Ids, Subtree, TokenId, TokenRecord};

const CALLS: u64 = 2_000_000;
const SUBTREE: u64 = 77;

/// No directory changes, and each file is where it was. (What the node takes to look a name up is
/// not measured.)
struct Still;

impl Tree for Still {
    fn changes(&self) -> Option<u64> {
        Some(0)
    }

    fn above(&self, _dir: InodeId) -> Option<InodeId> {
        None
    }

    fn is_named(&self, _file: InodeId, _dir: InodeId, _name: &Name) -> bool {
        true
    }

    fn moved_to(&self, _file: InodeId) -> Option<Place> {
        None
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let record = TokenRecord {
        id: TokenId([1; 8]),
        name: "example".into(),
        issued: 0,
        expires: Some(i64::MAX),
        revoked: None,
        verifier: [0; 32],
        read_only: false,
        admin: false,
        subtree: Some(Subtree { dir: SUBTREE, path: "/tree".into() }),
        uids: Ids::of(vec![(0, 0), (1000, 1999)])?,
        gids: Ids::of(vec![(100, 100), (1000, 1999)])?,
        squash: Some((1500, 1500)),
        map: (0..16).map(|at| (500 + at, 1500 + at)).collect(),
    };
    let grant = Grant::new(record);
    let (mut given, opens) = (GrantedInodes::default(), Opens::default());
    let name = Name::new(b"file").map_err(|why| why.to_string())?;
    (0..60_000).for_each(|ino| given.add_file(1000 + ino, 1_000_000, name.clone()));
    given.add_dirs((0..30_000).map(|ino| 1_000_000 + ino), Some(0), &Still);
    let creds = Creds { uid: 505, gid: 100, groups: Some([100, 1000].into()) };
    for what in ["lookup", "getattr"] {
        let begun = Instant::now();
        for at in 0..CALLS {
            let op = match what {
                "lookup" => Op::Lookup(PathRef::new(1_000_000 + at % 30_000, name.clone())),
                _ => Op::GetAttr(InodeRef::by_id(31_000 + at % 30_000)),
            };
            let mut request = black_box(Request { creds: creds.clone(), op });
            let authorized = grant
                .authorize(&mut request, &mut given, &opens, &Still)
                .map_err(|why| why.to_string())?;
            if !authorized.unverified.is_empty() {
                return Err("the example is wrong: nothing should be in doubt".into());
            }
            black_box(request);
        }
        println!(
            "{what}: {:.0} ns a call, making it included",
            begun.elapsed().as_nanos() as f64 / CALLS as f64
        );
    }
    Ok(())
}
