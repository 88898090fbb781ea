//! The start of a session: what is agreed with the kernel, over what transport, and the threads.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use super::{Core, Counters, FileSystem, Session};
use crate::abi::{self, InHeader, Opcode, OutHeader, Wire};
use crate::config::{Config, Negotiated, Offer};
use crate::error::{Error, Result};
use crate::mount::{self, Mount};
use crate::notify::Notifier;
use crate::request::Dialect;
use crate::transport::device::{Buffer, Channel, Device, DeviceConfig, Receive};
use crate::transport::uring::{Prepared, why_not_offered};
use crate::transport::{Transport, TransportChoice};

/// Rings for io_uring, or why there are none.
type Rings = std::result::Result<Prepared, String>;

pub(super) fn start<F: FileSystem>(mut mount: Mount, fs: F, config: &Config) -> Result<Session> {
    let unmounter = mount.unmounter();
    let inherited = mount.take_inherited();
    // From here on `mount` unmounts when it is dropped, until the session takes that over. One that
    // was inherited stays for the process that it is inherited from, or another one.
    let channel = Channel::new(mount.take_device()?);
    let counters = Arc::new(Counters::default());
    let rings =
        |offer: &Offer| rings(&channel, offer, config, mount.has_helper(), &counters.refused);
    let is_inherited = inherited.is_some();
    let (mut negotiated, rings, more) = match inherited {
        Some(inherited) => {
            (inherited.negotiated, Err("the mount is taken over".into()), inherited.descriptors)
        }
        None => {
            let (negotiated, rings) = negotiate(&channel, config, rings)?;
            (negotiated, rings, Vec::new())
        }
    };
    if config.hands_over && !negotiated.features.resend {
        let why = "the kernel cannot send requests again; that takes Linux 6.9";
        return Err(Error::plain("the mount cannot be handed over to another process", why));
    }
    if let (TransportChoice::Uring, Err(why)) = (config.transport, &rings) {
        return Err(no_uring(why));
    }
    if negotiated.max_readahead < config.max_readahead
        && mount::raise_readahead(unmounter.device(), config.max_readahead).is_ok()
    {
        negotiated.max_readahead = config.max_readahead;
    }

    let channel = Arc::new(channel);
    let notifier = Notifier::new(channel.clone());
    if let Err(errno) = fs.init(&negotiated, &notifier) {
        // While the connection is open, so that no file of the mount needs to be opened.
        drop(mount);
        return Err(Error::errno("the file system did not start", errno));
    }
    let dialect = Dialect { setxattr_ext: negotiated.features.setxattr_ext };
    // One more than there are threads, until all of them are there.
    let serving = AtomicUsize::new(1);
    let core = Arc::new(Core { fs, dialect, counters: counters.clone(), serving });
    let mut session = Session {
        threads: Vec::new(),
        workers: config.threads().0,
        negotiated,
        notifier,
        unmounter,
        transport: "",
        transport_why: String::new(),
        counters,
        descriptors: Vec::new(),
        intake: None,
        unmounts: !is_inherited,
    };
    mount.disarm();
    if is_inherited {
        // What the process before had read and did not answer. Before anything is read here: that
        // would come again, too.
        let resent = session.notifier.resend();
        resent.map_err(|error| Error::new("the kernel does not send requests again", error))?;
    }
    let served = session.serve(&channel, (rings, more), config, &core);
    if served.is_err() && session.unmounts {
        let _ = session.unmounter.force();
    }
    core.leave(1);
    served?;
    session.unmounts = true;
    Ok(session)
}

impl Session {
    /// Starts to serve: over io_uring if there are rings and the kernel takes them, else over the
    /// device.
    fn serve<F: FileSystem>(
        &mut self,
        channel: &Channel,
        (rings, more): (Rings, Vec<OwnedFd>),
        config: &Config,
        core: &Arc<Core<F>>,
    ) -> Result<()> {
        let threads = config.threads();
        let why = match rings {
            Ok(prepared) => {
                let uring = Arc::new(
                    prepared
                        .with(channel.fd(), threads.1, self.negotiated.max_write)
                        .map_err(cannot_open)?,
                );
                self.spawn(uring.clone(), core)?;
                match uring.wait_for_start() {
                    Ok(()) => {
                        self.transport = uring.name();
                        self.workers = uring.rings();
                        self.transport_why = match config.transport {
                            TransportChoice::Uring => "chosen".into(),
                            _ => "the kernel offers it".into(),
                        };
                        return Ok(());
                    }
                    Err(error) => {
                        // They have left without having served anything.
                        self.threads.drain(..).for_each(|thread| drop(thread.join()));
                        format!("the kernel refused it: {error}")
                    }
                }
            }
            Err(why) => why,
        };
        if config.transport == TransportChoice::Uring {
            return Err(no_uring(&why));
        }
        let refused = core.counters.refused.clone();
        let device_config = DeviceConfig {
            threads,
            clone_fd: config.clone_fd,
            max_write: self.negotiated.max_write,
            hands_over: config.hands_over,
        };
        let device =
            Device::new(channel.fd(), more, &device_config, refused).map_err(cannot_open)?;
        (self.descriptors, self.intake) = (device.descriptors(), device.intake());
        self.transport = device.name();
        self.transport_why = match config.transport {
            TransportChoice::Device => "chosen".into(),
            _ => format!("io_uring: {why}"),
        };
        self.spawn(Arc::new(device), core)
    }

    /// Starts the serving threads.
    fn spawn<F: FileSystem>(
        &mut self,
        transport: Arc<dyn Transport>,
        core: &Arc<Core<F>>,
    ) -> Result<()> {
        for number in 0..transport.threads() {
            let (serving, sink, unmounter) =
                (transport.clone(), core.clone(), self.unmounter.clone());
            let unmounts = self.unmounts;
            let body = move || {
                let end = serving.serve(number, &*sink);
                if end.is_err() && unmounts {
                    // A device that fails one thread is of no use to the others; this ends them.
                    let _ = unmounter.force();
                }
                sink.leave(1);
                end
            };
            core.serving.fetch_add(1, Ordering::AcqRel);
            match thread::Builder::new().name(format!("kestrel-fuse-{number}")).spawn(body) {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    if self.unmounts {
                        let _ = self.unmounter.force();
                    }
                    transport.give_up();
                    core.leave(1);
                    return Err(Error::new("cannot start a serving thread", error));
                }
            }
        }
        Ok(())
    }
}

fn no_uring(why: &str) -> Error {
    Error::plain("cannot serve over io_uring", format!("{why} (--transport device does without)"))
}

fn cannot_open(error: std::io::Error) -> Error {
    Error::new("cannot open /dev/fuse for another thread", error)
}

/// Makes rings if they are wanted and the kernel has use for them.
fn rings(
    channel: &Channel,
    offer: &Offer,
    config: &Config,
    has_helper: bool,
    refused: &Arc<AtomicU64>,
) -> Rings {
    if config.transport == TransportChoice::Device {
        return Err("not wanted".into());
    }
    if config.hands_over {
        return Err("rings end with their process, and the mount is one that outlives it".into());
    }
    if has_helper && config.transport == TransportChoice::Auto {
        // The kernel closes a dead process's rings a few milliseconds later than its sockets, and
        // fusermount3 looks once.
        return Err("auto_unmount needs a connection that ends with the process".into());
    }
    if !offer.has_uring() {
        return Err(why_not_offered());
    }
    Prepared::new(&channel.fd(), config, refused.clone()).map_err(|error| error.to_string())
}

/// Answers INIT, which the kernel sends by itself after mounting. Rings are made before io_uring is
/// agreed on.
fn negotiate(
    channel: &Channel,
    config: &Config,
    rings: impl FnOnce(&Offer) -> Rings,
) -> Result<(Negotiated, Rings)> {
    const WHAT: &str = "cannot agree with the kernel's FUSE module";
    let mut buffer = Buffer::new(abi::READ_BUFFER_BYTES_MIN);
    loop {
        let message = match channel.receive(buffer.space()) {
            Ok(message) => message,
            Err(Receive::Again) => continue,
            Err(Receive::End(_)) => return Err(Error::plain(WHAT, "unmounted before it began")),
            Err(Receive::Failed(error)) => return Err(Error::new(WHAT, error)),
        };
        let Some(header) = InHeader::read(message) else {
            return Err(Error::plain(WHAT, "its first message is truncated"));
        };
        let body = &message[size_of::<InHeader>()..];
        let answer = |error: i32, body: &[u8]| {
            let len = (size_of::<OutHeader>() + body.len()) as u32;
            let out = OutHeader { len, error: -error, unique: header.unique };
            channel
                .transmit(&[IoSlice::new(out.bytes()), IoSlice::new(body)])
                .map_err(|error| Error::new(WHAT, error))
        };
        if header.opcode != Opcode::Init as u32 {
            return Err(Error::plain(WHAT, format!("it began with operation {}", header.opcode)));
        }
        let Some(version) = abi::InitIn::read(body) else {
            return Err(Error::plain(WHAT, "its INIT message is truncated"));
        };
        if version.major > abi::KERNEL_MAJOR {
            // It will come again with a version that this crate has.
            answer(
                0,
                abi::InitOut {
                    major: abi::KERNEL_MAJOR,
                    minor: abi::KERNEL_MINOR_MAX,
                    ..Default::default()
                }
                .bytes(),
            )?;
            continue;
        }
        if version.major < abi::KERNEL_MAJOR || version.minor < abi::KERNEL_MINOR_MIN {
            answer(libc::EPROTO, &[])?;
            return Err(Error::plain(
                WHAT,
                format!(
                    "it speaks version {}.{}, at least {}.{} is needed (Linux 5.4)",
                    version.major,
                    version.minor,
                    abi::KERNEL_MAJOR,
                    abi::KERNEL_MINOR_MIN
                ),
            ));
        }
        let Some(offer) = Offer::parse(body) else {
            answer(libc::EPROTO, &[])?;
            return Err(Error::plain(WHAT, "its INIT message is truncated"));
        };
        let rings = rings(&offer);
        let (negotiated, out) = offer.negotiate(config, rings.is_ok());
        answer(0, out.bytes())?;
        return Ok((negotiated, rings));
    }
}
