//! The same check as a script and as a command of the module.

use std::cell::Cell;
use std::collections::HashMap;

use slidegate_testkit::redis::{Connection, RedisServer, Reply};

use crate::SCRIPTS;

/// A time from which tests go on by hand, in microseconds since the Unix epoch.
pub(crate) const NOW_US: u64 = 1_700_000_000_000_000;

/// The largest time that a call may carry.
pub(crate) const NEVER_LATE: &str = "9007199254740991";

/// The windows of a calendar, and of one whose values keep the totals of ended windows. Both have hours.
pub(crate) const CALENDAR: u64 = 1 << 47 | 5;
pub(crate) const KEEPING_CALENDAR: u64 = CALENDAR | 1 << 46;
pub(crate) const HOUR: u64 = 3_600_000_000;

thread_local! {
    /// The time of the server's clock.
    static NOW: Cell<u64> = const { Cell::new(NOW_US) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Log,
    Window,
    Fixed,
    Bucket,
    /// A limit on what is in flight, of keys that may have holds.
    InFlight,
}

/// A quota, packed for both by what docs/redis-layout.md and the scripts say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota {
    pub(crate) algorithm: Algorithm,
    pub(crate) limit: u64,
    pub(crate) window_us: u64,
    /// Of a bucket.
    pub(crate) burst: u64,
    /// Of a log.
    pub(crate) slots: u64,
}

/// A server with the module and the scripts.
pub(crate) struct Both {
    pub(crate) server: RedisServer,
    conn: Connection,
    hashes: Vec<String>,
    /// Hashes of other scripts, by the address of their text.
    others: HashMap<*const u8, String>,
}

/// Who makes a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Script,
    Module,
}

/// Numbers and their widths in bytes.
pub(crate) fn bytes(fields: &[(u64, usize)]) -> Vec<u8> {
    fields.iter().flat_map(|(number, width)| number.to_le_bytes()[..*width].to_vec()).collect()
}

impl Quota {
    pub(crate) fn new(algorithm: Algorithm, limit: u64, window_us: u64) -> Self {
        Self { algorithm, limit, window_us, burst: limit, slots: 1024 }
    }

    /// As `check_*.lua` unpacks it.
    pub(crate) fn for_script(&self) -> Vec<u8> {
        let Self { limit, window_us, slots, .. } = *self;
        let burst = if limit == 0 { 0 } else { self.burst };
        match self.algorithm {
            Algorithm::Bucket => bytes(&[(window_us, 6), (limit, 7), (burst, 7)]),
            Algorithm::InFlight => bytes(&[(window_us, 6), (limit, 7)]),
            Algorithm::Fixed if window_us >= CALENDAR => {
                let first = (NOW.get() - HOUR / 2) / HOUR * HOUR;
                let borders = [0, 1, 2, 3].map(|hours| (first + hours * HOUR, 7));
                bytes(&[&[(window_us, 6), (limit, 7), (0, 3)], borders.as_slice()].concat())
            }
            Algorithm::Fixed => bytes(&[(window_us, 6), (limit, 7), (self.head(0x21), 3)]),
            Algorithm::Window => bytes(&[(window_us, 6), (limit, 7), (self.head(0x22), 3)]),
            Algorithm::Log => {
                let step = if limit <= slots { 1 } else { window_us.div_ceil(slots) };
                let bits = u64::from(64 - (step - 1).leading_zeros());
                let runs = slots + u64::from(step > 1);
                let fields = [(step, 6), (bits, 1), (runs, 2), (limit.min(runs), 2)];
                bytes(&[&[(window_us, 6), (limit, 7)], fields.as_slice()].concat())
            }
        }
    }

    /// As the module reads it.
    pub(crate) fn for_module(&self) -> Vec<u8> {
        [vec![self.letter()], self.for_script()].concat()
    }

    pub(crate) fn letter(&self) -> u8 {
        match self.algorithm {
            Algorithm::Log => b'L',
            Algorithm::Window => b'W',
            Algorithm::Fixed => b'F',
            Algorithm::Bucket => b'B',
            Algorithm::InFlight => b'P',
        }
    }

    /// The first three bytes of a compact value.
    fn head(&self, tag: u64) -> u64 {
        let units = [1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];
        let code = units.iter().zip(0..).find_map(|(unit, number)| {
            let count = self.window_us / unit;
            (self.window_us.is_multiple_of(*unit) && count < 1 << 14).then_some(count * 4 + number)
        });
        code.map_or(0, |code| tag | code << 8)
    }
}

impl Both {
    pub(crate) fn start() -> Self {
        Self::on(RedisServer::builder().with_clock().module(true).start())
    }

    pub(crate) fn on(server: RedisServer) -> Self {
        let mut conn = server.connect();
        let hashes = SCRIPTS.check.iter().map(|text| {
            let text = format!("#!lua\n{text}");
            conn.call(&["SCRIPT", "LOAD", &text]).unwrap().to_string()
        });
        let hashes = hashes.collect();
        Self { server, conn, hashes, others: HashMap::new() }
    }

    /// Runs a script, which is sent once.
    pub(crate) fn eval(&mut self, text: &'static str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Reply {
        let conn = &mut self.conn;
        let hash = self.others.entry(text.as_ptr()).or_insert_with(|| {
            let text = format!("#!lua\n{text}");
            conn.call(&["SCRIPT", "LOAD", &text]).unwrap().to_string()
        });
        let count = keys.len().to_string();
        let mut command: Vec<&[u8]> = vec![b"EVALSHA", hash.as_bytes(), count.as_bytes()];
        command.extend(keys.iter().chain(args).map(Vec::as_slice));
        self.conn.call(&command).unwrap()
    }

    /// Stops the clock at this time.
    pub(crate) fn at(&self, now_us: u64) {
        NOW.set(now_us);
        self.server.clock().stand(now_us);
    }

    pub(crate) fn call(&mut self, command: &[&[u8]]) -> Reply {
        self.conn.call(command).unwrap()
    }

    /// Checks these requests: costs, each followed by how many there are of it.
    pub(crate) fn check(&mut self, by: By, key: &str, quota: &Quota, requests: &[u64]) -> Reply {
        let requests: Vec<_> = requests.iter().map(u64::to_string).collect();
        let packed = match by {
            By::Script => quota.for_script(),
            By::Module => quota.for_module(),
        };
        let hash = self.hashes[quota.algorithm as usize].clone();
        let mut command: Vec<&[u8]> = match by {
            By::Script => vec![b"EVALSHA", hash.as_bytes(), b"1", key.as_bytes()],
            By::Module => vec![b"SLIDEGATE.CHECK1", key.as_bytes()],
        };
        command.extend([NEVER_LATE.as_bytes(), &packed]);
        command.extend(requests.iter().map(String::as_bytes));
        self.call(&command)
    }

    pub(crate) fn stored(&mut self, key: &str) -> Option<Vec<u8>> {
        match self.call(&[b"GET", key.as_bytes()]) {
            Reply::Bytes(bytes) => Some(bytes),
            Reply::Nil => None,
            other => panic!("{key} holds {other:?}"),
        }
    }

    /// Milliseconds until the key expires; negative if it does not, or is not there.
    pub(crate) fn lives_ms(&mut self, key: &str) -> i64 {
        match self.call(&[b"PTTL", key.as_bytes()]) {
            Reply::Integer(lives) => lives,
            other => panic!("{other:?}"),
        }
    }
}
