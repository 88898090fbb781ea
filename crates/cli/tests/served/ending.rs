//! How serving processes end.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use kestrel_client::volume::VolumeLock;

use crate::common::{Place, kestrel};

#[test]
fn who_reads_that_a_server_closed_may_open_the_volume() {
    let place = Place::formatted();
    let mut server =
        kestrel(&["serve", &place.volume(), "--listen", "127.0.0.1:0", "--foreground"]);
    let mut server = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(server.stderr.take().unwrap());
    let mut closed = false;
    for line in log.lines().map(Result::unwrap) {
        if line.contains(" serves at ") {
            let pid = i32::try_from(server.id()).unwrap();
            // SAFETY: takes no pointer; the process is our child and not waited for yet.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
        }
        if line.ends_with(" closed") {
            closed = true;
            drop(VolumeLock::take(&place.path("vol"), "a test").unwrap());
        }
    }
    assert!(closed);
    assert!(server.wait().unwrap().success());
}
