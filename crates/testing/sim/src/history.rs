//! What clients asked and heard, in the order in which they did.

use kestrel_types::ids::InodeId;

use kestrel_types::request::{Reply, Request};

/// One call of one client.
#[derive(Debug, Clone)]
pub struct Record {
    /// The client.
    pub client: usize,
    /// What was asked.
    pub request: Request,
    /// When: counts what happens at clients.
    pub asked: u64,
    /// When and what was answered. None: nobody knows whether it was done.
    pub heard: Option<(u64, Reply)>,
    /// All the while the client had this file open, and its session was not lost.
    pub held: Option<InodeId>,
    /// The client's token had ended when it was asked; how often the wall clock had gone back
    /// before.
    pub late: Option<u64>,
    /// It was refused before anything was done.
    pub refused: bool,
}

/// All calls of a run.
#[derive(Debug, Default)]
pub struct History {
    /// By the time they were asked.
    pub records: Vec<Record>,
    moment: u64,
}

impl History {
    /// A call is asked; its number.
    pub fn ask(&mut self, client: usize, request: Request, held: Option<InodeId>) -> usize {
        self.moment += 1;
        self.records.push(Record {
            client,
            request,
            asked: self.moment,
            heard: None,
            held,
            late: None,
            refused: false,
        });
        self.records.len() - 1
    }

    /// A call is refused: it has not happened.
    pub fn refuse(&mut self, call: usize) {
        self.records[call].refused = true;
    }

    /// A call is answered.
    pub fn hear(&mut self, call: usize, reply: Reply) {
        self.moment += 1;
        self.records[call].heard = Some((self.moment, reply));
    }
}
