//! The classic transport: `read(2)` and `write(2)` on `/dev/fuse`.
//!
//! Every serving thread has a descriptor of its own, cloned from the first (FUSE_DEV_IOC_CLONE).
//! They share the kernel's queue of new requests, but each keeps its own list of requests in
//! progress, which takes a contended lock away; the reply must therefore be written to the
//! descriptor that the request was read from.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::abi::{self, Opcode, Wire};
use crate::transport::worker_slots::{WorkerSlot, WorkerSlots};
use crate::transport::{End, Gate, Intake, ReplyChannel, RequestSink, Transport};

/// Alignment of a WRITE's payload in the receive buffer, so that it can go on with direct I/O as it
/// is.
const PAYLOAD_ALIGN: usize = 4096;

/// How often, and how long apart, to check whether a connection was really aborted.
const ABORT_QUESTIONS: u32 = 5;
const ABORT_PAUSE: Duration = Duration::from_millis(1);

/// Serving threads on `/dev/fuse`.
pub struct Device {
    /// One for each thread.
    channels: Vec<Arc<Channel>>,
    slots: Arc<WorkerSlots>,
    buffer_bytes: usize,
    /// Of a connection that can be handed over.
    gate: Option<Arc<Gate>>,
}

/// One descriptor of the connection.
pub(crate) struct Channel {
    fd: Arc<OwnedFd>,
    /// Replies that the kernel refused, of all descriptors.
    failed: Arc<AtomicU64>,
    /// Whether answers still count, and the number of the thread that reads from it.
    gate: Option<(Arc<Gate>, usize)>,
}

/// How a connection is served over the device.
pub(crate) struct DeviceConfig {
    /// Threads at a time, and further ones for when some of those have to wait.
    pub(crate) threads: (usize, usize),
    /// Each has a descriptor of its own.
    pub(crate) clone_fd: bool,
    /// What INIT settled.
    pub(crate) max_write: u32,
    /// The connection can be handed over.
    pub(crate) hands_over: bool,
}

impl Device {
    /// Serves the connection `fd`. `more` are descriptors of it that are there already.
    pub(crate) fn new(
        fd: Arc<OwnedFd>,
        more: Vec<OwnedFd>,
        config: &DeviceConfig,
        failed: Arc<AtomicU64>,
    ) -> io::Result<Device> {
        let (workers, spare) = config.threads;
        let threads = workers + spare;
        let gate = config.hands_over.then(|| Gate::new(threads));
        let mut more = more.into_iter();
        let mut channels = Vec::with_capacity(threads);
        for thread in 0..threads {
            let own = match more.next() {
                _ if thread == 0 => fd.clone(),
                Some(inherited) => Arc::new(inherited),
                None if config.clone_fd => Arc::new(clone_device(fd.as_raw_fd())?),
                None => fd.clone(),
            };
            let gate = gate.clone().map(|gate| (gate, thread));
            channels.push(Arc::new(Channel { fd: own, failed: failed.clone(), gate }));
        }
        let max_write = config.max_write;
        let buffer_bytes =
            (abi::WRITE_HEAD_BYTES + max_write as usize).max(abi::READ_BUFFER_BYTES_MIN);
        Ok(Device { channels, slots: WorkerSlots::new(workers), buffer_bytes, gate })
    }

    /// The descriptors, the first one first; some may be there several times.
    pub(crate) fn descriptors(&self) -> Vec<Arc<OwnedFd>> {
        self.channels.iter().map(|channel| channel.fd.clone()).collect()
    }

    /// What closes the intake, if the connection can be handed over.
    pub(crate) fn intake(&self) -> Option<Intake> {
        self.gate.clone().map(Intake)
    }

    /// Reads a request and has it handled.
    #[inline]
    fn serve_one(
        &self,
        thread: usize,
        buffer: &mut Buffer,
        worker: &WorkerSlot,
        replies: &Arc<dyn ReplyChannel>,
        sink: &dyn RequestSink,
    ) -> Result<(), Receive> {
        let channel = &self.channels[thread];
        let Some(gate) = &self.gate else {
            let message = channel.receive(buffer.space())?;
            worker.with(|| sink.message(message, 0, replies));
            return Ok(());
        };
        gate.enter(thread);
        let received = channel.receive(buffer.space());
        if let Ok(message) = &received {
            gate.received(thread, is_answered(message));
            worker.with(|| sink.message(message, 0, replies));
        }
        gate.leave(thread);
        received.map(drop)
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Transport for Device {
    fn name(&self) -> &'static str {
        "device"
    }

    fn threads(&self) -> usize {
        self.channels.len()
    }

    fn serve(&self, thread: usize, sink: &dyn RequestSink) -> io::Result<End> {
        let channel = &self.channels[thread];
        let replies: Arc<dyn ReplyChannel> = channel.clone();
        let mut buffer = Buffer::new(self.buffer_bytes);
        let worker = WorkerSlot::new(self.slots.clone());
        if let Some(gate) = &self.gate {
            gate.begin(thread);
        }
        let ended = loop {
            if let Err(end) = worker.acquire() {
                break Ok(end);
            }
            match self.serve_one(thread, &mut buffer, &worker, &replies, sink) {
                Ok(()) | Err(Receive::Again) => {}
                Err(Receive::End(end)) => {
                    self.slots.close(end);
                    break Ok(end);
                }
                Err(Receive::Failed(error)) => {
                    self.slots.close(End::Aborted);
                    break Err(error);
                }
            }
        };
        if let Some(gate) = &self.gate {
            gate.end(thread);
        }
        ended
    }
}

/// Whether a message is a request that has an answer.
fn is_answered(message: &[u8]) -> bool {
    let opcode = abi::InHeader::read(message).map(|header| header.opcode);
    let mute = [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt].map(|mute| mute as u32);
    opcode.is_some_and(|opcode| !mute.contains(&opcode))
}

/// Why a read brought no message.
pub(crate) enum Receive {
    /// Nothing to do; read again.
    Again,
    /// The connection is over.
    End(End),
    /// Something is wrong with the device.
    Failed(io::Error),
}

impl Channel {
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Channel {
        Channel { fd, failed: Arc::default(), gate: None }
    }

    pub(crate) fn fd(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// Waits for one message.
    #[inline]
    pub(crate) fn receive<'b>(&self, space: &'b mut [u8]) -> Result<&'b [u8], Receive> {
        match self.read(space) {
            Ok(len) => Ok(&space[..len]),
            Err(error) => Err(self.no_message(error, space)),
        }
    }

    #[inline]
    fn read(&self, space: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the pointer and length are those of a live, exclusively borrowed slice.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), space.as_mut_ptr().cast(), space.len()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    #[cold]
    fn no_message(&self, error: io::Error, space: &mut [u8]) -> Receive {
        match error.raw_os_error() {
            // ENOENT: the request was withdrawn while it was being copied.
            Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => Receive::Again,
            Some(libc::ENODEV) => Receive::End(End::Unmounted),
            Some(libc::ECONNABORTED) => {
                // The error of aborted connections, but also of a request that was being read when
                // the file system was unmounted. A moment later the kernel's answer is the right
                // one.
                for _ in 0..ABORT_QUESTIONS {
                    std::thread::sleep(ABORT_PAUSE);
                    let again = self.read(space).map_err(|error| error.raw_os_error());
                    if again == Err(Some(libc::ENODEV)) {
                        return Receive::End(End::Unmounted);
                    }
                }
                Receive::End(End::Aborted)
            }
            _ => Receive::Failed(error),
        }
    }

    /// Sends one message.
    #[inline]
    pub(crate) fn transmit(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: the slices are live; IoSlice has the layout of iovec.
        until_sent(|| unsafe {
            match parts {
                [one] => libc::write(fd, one.as_ptr().cast(), one.len()),
                _ => libc::writev(fd, parts.as_ptr().cast(), parts.len() as libc::c_int),
            }
        })
    }

    /// Sends one message with a header that claims `missing` bytes more than `head` has. The kernel
    /// gets `EFAULT` where it comes to them, which is the error returned.
    pub(crate) fn transmit_head(&self, head: &[u8], missing: usize) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        let parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            // Nothing is ever mapped there.
            libc::iovec { iov_base: std::ptr::null_mut(), iov_len: missing },
        ];
        // SAFETY: the kernel only reads: the first part is live, and of the second it finds that
        // there is none.
        until_sent(|| unsafe { libc::writev(fd, parts.as_ptr(), parts.len() as libc::c_int) })
    }
}

/// Repeats a system call that writes until no signal interrupts it.
#[inline]
fn until_sent(mut write: impl FnMut() -> libc::ssize_t) -> io::Result<()> {
    loop {
        if write() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

impl ReplyChannel for Channel {
    #[inline]
    fn send(&self, _slot: u64, parts: &[IoSlice<'_>]) {
        if self.gate.as_ref().is_some_and(|(gate, _)| gate.is_silent()) {
            return;
        }
        let sent = self.transmit(parts);
        if let Some((gate, thread)) = &self.gate {
            gate.answered(*thread);
        }
        if let Err(error) = sent {
            // ENOENT: the caller was killed, or the connection is gone; ENODEV: unmounted
            // meanwhile. All is well.
            if !matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM)
            ) {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn set_aside(&self, aside: bool) {
        match &self.gate {
            Some((gate, thread)) if aside => gate.answered(*thread),
            Some((gate, thread)) => gate.owed(*thread),
            None => {}
        }
    }
}

/// Opens a further descriptor of the connection `of`.
pub(crate) fn clone_device(of: RawFd) -> io::Result<OwnedFd> {
    let fd: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/fuse")?.into();
    let mut source = of as u32;
    // SAFETY: the request reads one u32.
    if unsafe { libc::ioctl(fd.as_raw_fd(), abi::DEV_IOC_CLONE as _, &raw mut source) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// A receive buffer in which the payload of a WRITE begins on a page. Its memory is not touched
/// before the kernel writes to it, so that a thread which never sees large writes costs two pages.
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(len: usize) -> Buffer {
        // Zeroed memory of this size comes from the kernel as it is, untouched.
        let memory = vec![0; len + 2 * PAYLOAD_ALIGN];
        let payload =
            (memory.as_ptr() as usize + abi::WRITE_HEAD_BYTES).next_multiple_of(PAYLOAD_ALIGN);
        let start = payload - abi::WRITE_HEAD_BYTES - memory.as_ptr() as usize;
        Buffer { memory, start, len }
    }

    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
