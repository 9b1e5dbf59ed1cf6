//! The service under attack, and a well-behaved client of each of its protocols.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until};

use crate::http2;

const ONE_POLICY: &str = "{name: p, scope: [user], quota: 1000000/1h}";
/// Work that the service may do before it serves a well-behaved client, for 99 of 100 requests of one
/// connection, as a number of such requests without others beside them: so that neither other programs
/// nor a slow machine change anything about it. Before batches and floods were bounded, it was over ten times as many.
const LATE: u32 = 2000;
/// The same for a client that connects anew.
const SERVED_WITHIN: Duration = Duration::from_secs(10);
/// How often a well-behaved client tries again that is refused, with a pause between.
const MOST_TRIES: usize = 200;
const RETRY: Duration = Duration::from_millis(50);
/// Longer than any wait of a service that goes on: it hangs.
const HANGS: Duration = Duration::from_secs(300);
/// Requests that the work of one is averaged over: enough for a clock of 10 ms.
const ALONE: u32 = 2000;
/// Fewest requests of a percentile.
const SAMPLES: usize = 100;
/// Pause between two requests of a well-behaved client, so that one long wait counts.
const PAUSE: Duration = Duration::from_millis(5);

/// What the service did, in time of a processor, before it replied to a well-behaved client.
#[derive(Debug)]
pub(crate) struct Waits {
    p99: Duration,
    #[allow(dead_code)] // for messages
    requests: usize,
    /// For one request without others beside it.
    alone: Duration,
}

impl Waits {
    pub(crate) fn assert_short(&self) {
        assert!(self.p99 < LATE * self.alone, "{self:?}, {:.0}", self.p99.div_duration_f64(self.alone));
    }
}

/// The protocols, each by its own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Resp,
    Grpc,
}

impl Protocol {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Resp, Self::Grpc];

    /// Its name in `/v1/status`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Resp => "resp",
            Self::Grpc => "grpc",
        }
    }

    /// A complete and valid request.
    pub(crate) fn request(self) -> Vec<u8> {
        match self {
            Self::Http => b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(),
            Self::Resp => b"*2\r\n$4\r\nECHO\r\n$6\r\nserved\r\n".to_vec(),
            Self::Grpc => http2::health_check(),
        }
    }

    /// The request of this number on one connection.
    fn repeated(self, number: usize) -> Vec<u8> {
        match (self, number) {
            (Self::Grpc, 1..) => http2::next_health_check(u32::try_from(2 * number + 1).unwrap()),
            _ => self.request(),
        }
    }

    /// What a reply to it contains.
    fn reply(self) -> &'static [u8] {
        match self {
            Self::Http => b"HTTP/1.1 200 OK",
            Self::Resp => b"$6\r\nserved\r\n",
            Self::Grpc => &http2::SERVING,
        }
    }
}

/// The service with all protocols on free ports of loopback.
pub(crate) struct Victim {
    pub(crate) server: Server,
    /// Its config file.
    pub(crate) config: String,
    _folder: TempDir,
}

impl Victim {
    /// With these lines in the config file.
    pub(crate) fn start(name: &str, config: &str) -> Self {
        Self::start_by(name, ONE_POLICY, config, |config| Server::start(&["--config", config]))
    }

    /// With these policies instead of one, as a list.
    pub(crate) fn start_under(name: &str, policies: &str) -> Self {
        Self::start_by(name, policies, "", |config| Server::start(&["--config", config]))
    }

    /// With a limit of file descriptors.
    pub(crate) fn start_with_descriptors(name: &str, descriptors: usize) -> Self {
        Self::start_by(name, ONE_POLICY, "", |config| {
            Server::start_with_descriptors(descriptors, &["--config", config])
        })
    }

    fn start_by(name: &str, policies: &str, config: &str, start: impl FnOnce(&str) -> Server) -> Self {
        let folder = TempDir::new(name);
        let text = format!(
            "policies: [{policies}]\ngrpc: {{listen: '127.0.0.1:0'}}\n\
             resp: {{listen: '127.0.0.1:0'}}\n{config}"
        );
        let config = folder.file("slidegate.yaml", text);
        Self { server: start(&config), config, _folder: folder }
    }

    pub(crate) fn address(&self, protocol: Protocol) -> String {
        match protocol {
            Protocol::Http => self.server.address.clone(),
            Protocol::Resp => self.server.address_of("resp").to_owned(),
            Protocol::Grpc => self.server.address_of("grpc").to_owned(),
        }
    }

    /// A connection that says nothing yet.
    pub(crate) fn connect(&self, protocol: Protocol) -> TcpStream {
        let stream = TcpStream::connect(self.address(protocol)).expect("the kernel accepts");
        stream.set_read_timeout(Some(HANGS)).unwrap();
        stream.set_write_timeout(Some(HANGS)).unwrap();
        stream
    }

    /// Asserts that a well-behaved client of every protocol is served, before the service does much
    /// else. It reconnects when it is refused, as clients do.
    pub(crate) fn assert_served(&self) {
        for protocol in Protocol::ALL {
            let begun = self.processor_time();
            let mut last = String::new();
            for tries in 1.. {
                let Err(why) = self.ask(protocol) else { break };
                last = why;
                assert!(tries < MOST_TRIES, "{protocol:?} is not served: {last}");
                thread::sleep(RETRY);
            }
            let worked = self.processor_time() - begun;
            assert!(worked < SERVED_WITHIN, "{protocol:?} was served after {worked:?} of work: {last}");
        }
    }

    /// What a well-behaved client of a protocol waits for while others do this. It has one connection
    /// and sends one request after another.
    pub(crate) fn waits_during(&self, protocol: Protocol, attack: impl FnOnce()) -> Waits {
        let alone = self.work_of_one(protocol);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut stream = self.connect(protocol);
                let mut waits = Vec::new();
                while !is_over.load(Ordering::Relaxed) || waits.len() < SAMPLES {
                    let asked = self.processor_time();
                    request(&mut stream, protocol, waits.len());
                    waits.push(self.processor_time() - asked);
                    thread::sleep(PAUSE);
                }
                waits
            });
            // The client must end if the attack fails.
            let attacked = catch_unwind(AssertUnwindSafe(attack));
            is_over.store(true, Ordering::Relaxed);
            let mut waits = client.join().unwrap();
            attacked.unwrap_or_else(|panic| resume_unwind(panic));
            waits.sort_unstable();
            // Of 100, one may be late: the client itself may have waited for a processor.
            let p99 = waits[(waits.len() * 99).div_ceil(100) - 1];
            Waits { p99, requests: waits.len(), alone }
        })
    }

    /// The work of one request of many, while nobody else asks.
    fn work_of_one(&self, protocol: Protocol) -> Duration {
        let mut stream = self.connect(protocol);
        request(&mut stream, protocol, 0);
        let begun = self.processor_time();
        for number in 1..=ALONE {
            request(&mut stream, protocol, number as usize);
        }
        (self.processor_time() - begun) / ALONE
    }

    /// One request on a new connection.
    fn ask(&self, protocol: Protocol) -> Result<(), String> {
        let mut stream = TcpStream::connect(self.address(protocol)).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(HANGS)).unwrap();
        stream.write_all(&protocol.request()).map_err(|error| error.to_string())?;
        let mut replied = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => replied.extend(&buffer[..read]),
                Err(error) => return Err(error.to_string()),
            }
            let wanted = protocol.reply();
            if replied.windows(wanted.len()).any(|bytes| bytes == wanted) {
                let _ = stream.shutdown(Shutdown::Both);
                return Ok(());
            }
        }
        Err(format!("closed after {}", replied.escape_ascii()))
    }

    /// Time of processors that it has used so far, in steps of 10 ms.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.server.pid())).unwrap();
        // `utime` and `stime`, counted from behind the name in brackets; Linux counts 100 in a second.
        let fields = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
        let ticks: u64 = fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(10 * ticks)
    }

    /// Its open file descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.server.pid())).unwrap().count()
    }

    /// Its resident memory in bytes.
    pub(crate) fn resident(&self) -> usize {
        self.memory("VmRSS:")
    }

    /// The most resident memory that it has had so far, in bytes.
    pub(crate) fn peak_resident(&self) -> usize {
        self.memory("VmHWM:")
    }

    /// A line of its memory in `/proc`, in bytes.
    fn memory(&self, line: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.pid())).unwrap();
        let amount = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
        amount.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    /// A member of `connections` in `/v1/status`.
    pub(crate) fn connections(&self, pointer: &str) -> u64 {
        let pointer = format!("/connections{pointer}");
        // Where connections are short, one for the question may be refused at first.
        until("the status", || self.server.get("/v1/status").json().pointer(&pointer)?.as_u64())
    }
}

/// Sends the request of this number on one connection, and reads its reply.
fn request(stream: &mut TcpStream, protocol: Protocol, number: usize) {
    stream.write_all(&protocol.repeated(number)).unwrap();
    let (mut replied, mut buffer) = (Vec::new(), [0; 4096]);
    let wanted = protocol.reply();
    while !replied.windows(wanted.len()).any(|bytes| bytes == wanted) {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "closed after {}", replied.escape_ascii());
        replied.extend(&buffer[..read]);
    }
}

/// Writes without waiting until the other side takes nothing more, at most `most` bytes. Returns how
/// many bytes went through.
pub(crate) fn fill(stream: &mut TcpStream, bytes: &[u8], most: usize) -> usize {
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut stalled) = (0, 0);
    while sent < most && stalled < 20 {
        // A partial write goes on where it stopped, so that the stream stays valid.
        match stream.write(&bytes[sent % bytes.len()..]) {
            Ok(written) => {
                sent += written;
                stalled = 0;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stalled += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => break,
        }
    }
    stream.set_nonblocking(false).unwrap();
    sent
}

/// Waits until the server has closed a connection, reading what it still sends.
pub(crate) fn until_closed(stream: &mut TcpStream) {
    let mut buffer = [0; 65536];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("not closed after {HANGS:?}")
            }
            Err(_) => return,
        }
    }
}
