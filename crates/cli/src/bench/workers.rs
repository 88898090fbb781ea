//! The workers of steps: threads of this process, or child processes with threads of their own.
//!
//! A child is this program again (`kestrel bench-worker`). It reads one JSON value a line: first
//! its thread numbers, then steps. To a step it answers `"ready"`, waits for the line `"go"`, and
//! answers with what it did. When its input ends it stops at once: a child never outlives its
//! parent for longer than one call.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use parking_lot::Mutex;

use super::cpu::Cpu;
use super::step::{BenchStep, Outcome, PackedOutcome, STOP, Threads};

/// Most child processes.
pub const PROCESSES_MAX: u64 = 256;

/// Child processes that have not been waited for.
static CHILDREN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Ends the present step: here, and in the child processes, which may not have got the signal.
pub fn stop() {
    STOP.store(true, Ordering::SeqCst);
    for child in CHILDREN.lock().iter() {
        // SAFETY: kill takes no pointers. The number is our child's: it leaves the list before it
        // is waited for.
        unsafe { libc::kill(*child as i32, libc::SIGTERM) };
    }
}

/// The workers of steps.
pub enum Workers {
    /// Threads of this process.
    Here(Threads),
    /// Child processes.
    Children(Vec<Worker>),
}

/// A child process.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Workers {
    /// `processes` processes of `threads` threads each; one process means this one.
    pub fn new(processes: u64, threads: u64) -> io::Result<Self> {
        if processes <= 1 {
            return Ok(Workers::Here(Threads::new(0..threads)));
        }
        let program = std::env::current_exe()?;
        let mut workers = Vec::new();
        for process in 0..processes {
            let mut child = Command::new(&program)
                .arg("bench-worker")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            CHILDREN.lock().push(child.id());
            let missing = || io::Error::other("a child process without pipes");
            let input = child.stdin.take().ok_or_else(missing)?;
            let output = BufReader::new(child.stdout.take().ok_or_else(missing)?);
            let mut worker = Worker { child, input: Some(input), output };
            worker.send(&(process * threads..(process + 1) * threads).collect::<Vec<u64>>())?;
            workers.push(worker);
        }
        Ok(Workers::Children(workers))
    }

    /// Everybody does one step, starting together. Also tells the processor time of the whole
    /// machine meanwhile, microseconds, preparations left out.
    pub fn run(&mut self, step: &BenchStep) -> (Outcome, u64) {
        let mut before = Cpu::now();
        let outcome = match self {
            Workers::Here(threads) => threads.run(step, || {
                before = Cpu::now();
                Ok(())
            }),
            Workers::Children(workers) => {
                run_children(workers, step, &mut before).unwrap_or_else(|why| {
                    STOP.store(true, Ordering::SeqCst);
                    Outcome { error: Some(format!("a bench process: {why}")), ..Outcome::default() }
                })
            }
        };
        (outcome, Cpu::since(&before).machine_us)
    }
}

fn run_children(workers: &mut [Worker], step: &BenchStep, before: &mut Cpu) -> io::Result<Outcome> {
    for worker in workers.iter_mut() {
        worker.send(step)?;
    }
    for worker in workers.iter_mut() {
        if worker.receive::<String>()? != "ready" {
            return Err(io::Error::other("unexpected answer"));
        }
    }
    *before = Cpu::now();
    for worker in workers.iter_mut() {
        worker.send(&"go")?;
    }
    let mut total = Outcome::default();
    for worker in workers.iter_mut() {
        total.merge(Outcome::unpack(worker.receive::<PackedOutcome>()?));
    }
    Ok(total)
}

impl Worker {
    fn send(&mut self, value: &impl serde::Serialize) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        serde_json::to_writer(&mut *input, value)?;
        input.write_all(b"\n")
    }

    fn receive<T: serde::de::DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other("it ended before its time"));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.input.take());
        CHILDREN.lock().retain(|child| *child != self.child.id());
        let _ = self.child.wait();
    }
}

/// The child's side: does what comes in on standard input until it ends.
pub fn work() -> io::Result<()> {
    // The parent decides what an interruption means.
    kestrel_daemon::signals::on_signal(|_| STOP.store(true, Ordering::SeqCst));
    let (sender, lines) = mpsc::channel::<String>();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
        STOP.store(true, Ordering::SeqCst);
    });
    let mut say = io::stdout();
    let next = || lines.recv().map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof));
    let Ok(first) = next() else { return Ok(()) };
    let numbers: Vec<u64> = serde_json::from_str(&first)?;
    let mut threads = Threads::new(numbers.into_iter());
    while let Ok(line) = next() {
        let step: BenchStep = serde_json::from_str(&line)?;
        let outcome = threads.run(&step, || {
            writeln!(io::stdout(), "\"ready\"")?;
            next().map(drop)
        });
        serde_json::to_writer(&mut say, &outcome.pack())?;
        writeln!(say)?;
    }
    Ok(())
}
