//! The calls and answers of clients, in their order.

use kestrel_types::ids::InodeId;

use kestrel_types::request::{Reply, Request};

/// One call of one client.
#[derive(Debug, Clone)]
pub struct Record {
    /// The client.
    pub client: usize,
    /// The request.
    pub request: Request,
    /// When: counts what happens at clients.
    pub begun: u64,
    /// When it was answered, and how. None: whether it was done is unknown.
    pub answered: Option<(u64, Reply)>,
    /// All the while the client had this file open, and its session was not lost.
    pub held: Option<InodeId>,
    /// The client's token had ended when the call began; how often the wall clock had gone back
    /// before.
    pub late: Option<u64>,
    /// It was refused before anything was done.
    pub refused: bool,
}

/// All calls of a run.
#[derive(Debug, Default)]
pub struct History {
    /// In the order of their begin.
    pub records: Vec<Record>,
    moment: u64,
}

impl History {
    /// A call begins; answers its number.
    pub fn begin(&mut self, client: usize, request: Request, held: Option<InodeId>) -> usize {
        self.moment += 1;
        self.records.push(Record {
            client,
            request,
            begun: self.moment,
            answered: None,
            held,
            late: None,
            refused: false,
        });
        self.records.len() - 1
    }

    /// A client closes a file: its calls under way do not have it open all the while.
    pub fn let_go(&mut self, client: usize, ino: InodeId) {
        let under_way = |record: &&mut Record| record.client == client && record.answered.is_none();
        for record in self.records.iter_mut().filter(under_way) {
            record.held = record.held.filter(|held| *held != ino);
        }
    }

    /// A call is refused: it has not happened.
    pub fn refuse(&mut self, call: usize) {
        self.records[call].refused = true;
    }

    /// A call is answered.
    pub fn finish(&mut self, call: usize, reply: Reply) {
        self.moment += 1;
        self.records[call].answered = Some((self.moment, reply));
    }
}
