//! The recorder: writes what the service decides on to a file that `slidegate replay` reads.
//!
//! A decision never waits for the disk: it puts a line into a bounded queue, which a thread writes.
//! Lines that do not fit, and those that cannot be written, are counted. Values of attributes are
//! redacted as the policies that count by them require.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use slidegate::{Decisions, PolicySet, Request, Role, Timestamp, Verb};

use super::redaction::Redactor;
use crate::config::Record;
use file::RotatedFile;
use line::{Hidden, LineWriter, is_line, values_of};
pub(crate) use line::{RecordedChange, RecordedReservation};
use slidegate_config::names::is_inline;
use slidegate_config::policy::KeysShown;

mod file;
mod line;

/// Lines that may wait for the disk: a tenth of a second at 160,000 decisions per second.
const QUEUED_LINES: usize = 16_384;
/// Bytes of these lines. A request may have 256 KiB of attributes.
const QUEUED_BYTES: usize = 32 << 20;
/// How long the thread sleeps when the queue is empty. Decisions need not wake it then.
const IDLE: Duration = Duration::from_millis(10);
/// How often it is examined whether lines have to be flushed: once a second.
const IDLE_PER_FLUSH: u32 = 100;

/// Records requests, if configured.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Whether anything is recorded: all that a decision asks if not.
    is_on: AtomicBool,
    active: ArcSwapOption<Recording>,
    /// How attributes are redacted, by their names. Others are recorded as they are.
    hidden: ArcSwap<HashMap<String, Hidden>>,
    counts: Arc<Counts>,
}

/// Counts of recorded and lost lines since the start.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    /// Why the last write failed, until one succeeds.
    error: Mutex<Option<String>>,
}

/// The state of the recorder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecorderStatus {
    pub(crate) settings: Record,
    /// Lines in the files.
    pub(crate) written: u64,
    /// Lines that did not fit into the queue.
    pub(crate) dropped: u64,
    /// Lines that could not be written.
    pub(crate) failed: u64,
    pub(crate) error: Option<String>,
}

/// What is to be recorded from now on. Closes its file unless it is activated.
#[derive(Debug)]
pub(crate) enum PreparedRecording {
    /// The same as before.
    Unchanged,
    /// To another file, with other settings, or not at all.
    New(Option<Recording>),
}

/// A queue and the thread that writes what is in it.
#[derive(Debug)]
pub(crate) struct Recording {
    settings: Record,
    queue: SyncSender<Line>,
    queued_bytes: Arc<AtomicUsize>,
    /// Lines that were queued and not taken by the thread.
    queued_lines: Arc<AtomicU64>,
    is_ending: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counts: Arc<Counts>,
}

/// One call, written but for its time.
#[derive(Debug)]
struct Line {
    at: Timestamp,
    /// Everything after the time.
    rest: Vec<u8>,
}

impl Recorder {
    /// Opens the file of these settings, to record there once it is [activated](Self::activate).
    ///
    /// # Errors
    /// One line: the file cannot be written. Recording continues as before.
    pub(crate) fn prepare(&self, settings: Option<&Record>) -> Result<PreparedRecording, String> {
        let before = self.active.load_full().map(|recording| recording.settings.clone());
        if before.as_ref() == settings {
            return Ok(PreparedRecording::Unchanged);
        }
        let start = |settings: &Record| Recording::start(settings.clone(), &self.counts);
        let Some(settings) = settings else { return Ok(PreparedRecording::New(None)) };
        // A file can be opened again only when it is no longer written.
        let Some(before) = before.filter(|before| before.path == settings.path) else {
            return start(settings).map(|new| PreparedRecording::New(Some(new)));
        };
        self.end();
        start(settings).map(|new| PreparedRecording::New(Some(new))).inspect_err(|_| {
            if let Ok(again) = start(&before) {
                self.activate(PreparedRecording::New(Some(again)));
            }
        })
    }

    /// Records to the prepared file from now on. Blocks until the former one is written.
    pub(crate) fn activate(&self, prepared: PreparedRecording) {
        let PreparedRecording::New(new) = prepared else { return };
        let is_on = new.is_some();
        let before = self.active.swap(new.map(Arc::new));
        self.is_on.store(is_on, Release);
        if let Some(before) = before {
            before.end();
        }
    }

    /// Writes what is queued, and records nothing more. Blocks until it is written.
    pub(crate) fn end(&self) {
        self.is_on.store(false, Release);
        if let Some(recording) = self.active.swap(None) {
            recording.end();
        }
    }

    /// Whether anything is recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// The state, if requests are recorded.
    pub(crate) fn status(&self) -> Option<RecorderStatus> {
        let settings = self.active.load().as_deref()?.settings.clone();
        let Counts { written, dropped, failed, error } = &*self.counts;
        Some(RecorderStatus {
            settings,
            written: written.load(Relaxed),
            dropped: dropped.load(Relaxed),
            failed: failed.load(Relaxed),
            error: error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        })
    }

    /// Redacts attributes as these policies require from now on: the strictest one counts.
    pub(super) fn follow(&self, policies: &PolicySet, keys_shown: impl Fn(&str) -> KeysShown) {
        let mut hidden: HashMap<String, Hidden> = HashMap::new();
        for policy in policies.iter() {
            for attribute in policy.scope() {
                let new = Hidden { keys_shown: keys_shown(policy.name()), ipv6_prefix: policy.ipv6_prefix() };
                let known = hidden.entry(attribute.clone()).or_insert(new);
                known.keys_shown = stricter(known.keys_shown, new.keys_shown);
                if new.ipv6_prefix.bits() > known.ipv6_prefix.bits() {
                    known.ipv6_prefix = new.ipv6_prefix;
                }
            }
        }
        hidden.retain(|_, one| one.keys_shown != KeysShown::Plain);
        self.hidden.store(Arc::new(hidden));
    }

    /// Records a call as one line; it was decided at `now` if no policy applied.
    ///
    /// The requests of a call are decided in one step, so a replay must find them together.
    #[cold]
    #[inline(never)]
    pub(super) fn record(
        &self,
        verb: Option<Verb>,
        requests: &[Request<'_>],
        decisions: &Decisions<'_>,
        reservation: Option<RecordedReservation>,
        redactor: &Redactor,
        now: impl Fn() -> Timestamp,
    ) {
        let active = self.active.load();
        let Some(recording) = active.as_deref() else { return };
        // What was refused of a request is recorded with it, or not at all.
        let mut kept: Vec<usize> = Vec::with_capacity(requests.len());
        for (position, request) in requests.iter().enumerate() {
            let is_kept = match request.role() {
                Role::Refusals => position > 0 && kept.last() == Some(&(position - 1)),
                _ => recording.has(position, request, decisions, redactor),
            };
            if is_kept {
                kept.push(position);
            }
        }
        let lines = LineWriter { hidden: &self.hidden.load(), redactor };
        let verb_of = |request: &Request<'_>| verb.unwrap_or(request.verb());
        let rest = match kept[..] {
            [] => return,
            // Of a single request, the other roles decide the same as none.
            [only] if reservation.is_none() && is_line(&requests[only]) => {
                lines.rest_of_line(verb_of(&requests[only]), &requests[only])
            }
            _ => {
                let kept = kept.iter().map(|position| &requests[*position]);
                lines.rest_of_call(kept.map(|request| (verb_of(request), request)), reservation)
            }
        };
        let first = decisions.iter().find(|one| kept.contains(&one.request()));
        let at = first.map_or_else(now, |one| one.at());
        recording.put(Line { at, rest });
    }

    /// Records a change of a reservation as one line. Changes of reservations that are not in the sample
    /// are recorded as well: a ticket does not say whose it is.
    #[cold]
    #[inline(never)]
    pub(super) fn record_change(&self, change: RecordedChange<'_>, at: Timestamp) {
        let active = self.active.load();
        let Some(recording) = active.as_deref() else { return };
        recording.put(Line { at, rest: change.rest() });
    }
}

impl Recording {
    fn start(settings: Record, counts: &Arc<Counts>) -> Result<Self, String> {
        let path = settings.path.display();
        let file = RotatedFile::open(&settings).map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::NotFound => "; create its directory",
                io::ErrorKind::PermissionDenied => "; the file and its directory must be writable",
                io::ErrorKind::WouldBlock => "; give each process its own file",
                _ => "",
            };
            format!("record: cannot write `{path}`: {error}{advice}")
        })?;
        let (queue, lines) = sync_channel(QUEUED_LINES);
        let (queued_bytes, is_ending) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let queued_lines = Arc::<AtomicU64>::default();
        let writer = Writer {
            file,
            lines,
            queued_bytes: Arc::clone(&queued_bytes),
            queued_lines: Arc::clone(&queued_lines),
            is_ending: Arc::clone(&is_ending),
            counts: Arc::clone(counts),
        };
        let thread = std::thread::Builder::new().name("recorder".into()).spawn(move || writer.run());
        let thread = thread.map_err(|error| format!("record: cannot start a thread: {error}"))?;
        let (thread, counts) = (Mutex::new(Some(thread)), Arc::clone(counts));
        Ok(Self { settings, queue, queued_bytes, queued_lines, is_ending, thread, counts })
    }

    /// Whether a request of a call is recorded: its quota is one of the configuration, and its key
    /// is in the sample.
    fn has(
        &self,
        position: usize,
        request: &Request<'_>,
        decisions: &Decisions<'_>,
        redactor: &Redactor,
    ) -> bool {
        if request.named_policy().is_some_and(is_inline) {
            return false;
        }
        let sample = self.settings.sample;
        if sample >= 1.0 {
            return true;
        }
        let first = decisions.iter().find(|one| one.request() == position);
        let key = first.map(|one| one.key().to_string());
        redactor.share(&key.unwrap_or_else(|| values_of(request))) < sample
    }

    /// Queues a line, or counts that there was no room.
    fn put(&self, line: Line) {
        let bytes = line.rest.len();
        let has_room = self.queued_bytes.fetch_add(bytes, Relaxed) + bytes <= QUEUED_BYTES;
        self.queued_lines.fetch_add(1, Relaxed);
        if !has_room || self.queue.try_send(line).is_err() {
            self.queued_bytes.fetch_sub(bytes, Relaxed);
            self.queued_lines.fetch_sub(1, Relaxed);
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    fn end(&self) {
        self.is_ending.store(true, Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// When nobody holds it any more, nothing can be queued, and the thread has ended: what is left in
/// the queue was put there after the thread had read it for the last time.
impl Drop for Recording {
    fn drop(&mut self) {
        self.end();
        self.counts.dropped.fetch_add(self.queued_lines.load(Acquire), Relaxed);
    }
}

/// The thread that writes lines.
struct Writer {
    file: RotatedFile,
    lines: Receiver<Line>,
    queued_bytes: Arc<AtomicUsize>,
    queued_lines: Arc<AtomicU64>,
    is_ending: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Writer {
    fn run(mut self) {
        let mut idle = 0;
        loop {
            // Read before the queue: what was put before the end is then found.
            let is_ending = self.is_ending.load(Acquire);
            match self.lines.try_recv() {
                Ok(line) => {
                    self.queued_bytes.fetch_sub(line.rest.len(), Relaxed);
                    self.queued_lines.fetch_sub(1, Release);
                    let done = self.file.write(line.at, &line.rest);
                    self.note(done);
                    continue;
                }
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) if is_ending => break,
                Err(TryRecvError::Empty) => {}
            }
            std::thread::sleep(IDLE);
            idle += 1;
            if idle >= IDLE_PER_FLUSH {
                idle = 0;
                let done = self.file.tick();
                self.note(done);
            }
        }
        let done = self.file.flush();
        self.note(done);
    }

    /// Counts the lines that were written or lost. The first of several failures is logged.
    fn note(&self, done: file::Outcome) {
        let file::Outcome { written, lost, error } = done;
        self.counts.written.fetch_add(written, Relaxed);
        self.counts.failed.fetch_add(lost, Relaxed);
        if written == 0 && error.is_none() {
            return;
        }
        let mut known = self.counts.error.lock().unwrap_or_else(PoisonError::into_inner);
        match (&error, known.is_some()) {
            (Some(error), false) => {
                tracing::warn!(path = %self.file.path().display(), error, "requests cannot be recorded");
            }
            (None, true) => tracing::info!("requests are recorded again"),
            _ => {}
        }
        *known = error;
    }
}

/// The stricter way to show an attribute.
fn stricter(one: KeysShown, other: KeysShown) -> KeysShown {
    match (one, other) {
        (KeysShown::Hashed, _) | (_, KeysShown::Hashed) => KeysShown::Hashed,
        (KeysShown::Masked, _) | (_, KeysShown::Masked) => KeysShown::Masked,
        _ => KeysShown::Plain,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use slidegate::{Policy, Quota};

    use super::line::escaped;
    use super::*;

    fn line(recorder: &Recorder, request: &Request<'_>, secret: &str) -> String {
        let (hidden, redactor) = (recorder.hidden.load(), Redactor::new(Some(secret)));
        let rest = LineWriter { hidden: &hidden, redactor: &redactor }.rest_of_line(Verb::Check, request);
        String::from_utf8(rest).unwrap()
    }

    /// A recording is a file that many may read: it must show no more than the log does.
    #[test]
    fn attributes_are_redacted_as_the_strictest_policy_requires() {
        let recorder = Recorder::default();
        let policy = |name: &str, scope: &[&str]| {
            Policy::new(name, Quota::per_minute(1)).unwrap().with_scope(scope.iter().copied())
        };
        let policies =
            [policy("plain", &["user", "path"]), policy("masked", &["user"]), policy("hashed", &["ip"])];
        let policies = PolicySet::new(policies).unwrap();
        recorder.follow(&policies, |name| match name {
            "masked" => KeysShown::Masked,
            "hashed" => KeysShown::Hashed,
            _ => KeysShown::Plain,
        });
        let of = |user: &str, ip: &str| {
            let ip: IpAddr = ip.parse().unwrap();
            line(&recorder, &Request::new().with("user", user).with("ip", ip).with("path", "/a\"b"), "s")
        };
        let one = of("alice-smith", "2001:db8:1:200::1");
        let start = "\",\"cost\":1,\"attributes\":{\"user\":\"al***#";
        assert!(one.starts_with(start) && one.ends_with(",\"path\":\"/a\\\"b\"}}\n"), "{one}");
        assert!(!one.contains("smith") && !one.contains("2001"), "{one}");
        // Addresses of one network are one key, so they have one hash.
        assert_eq!(one, of("alice-smith", "2001:db8:1:2ff::9"));
        assert_ne!(one, of("alice-smith", "2001:db8:1:300::1"));
        // Masks that look alike are distinct.
        assert_ne!(one, of("alice-smyth", "2001:db8:1:200::1"));
    }

    /// A recording that lacks lines must say so, also those of the last moment.
    #[test]
    fn lines_that_the_thread_did_not_take_before_it_ended_are_counted() {
        let counts = Arc::<Counts>::default();
        let (queue, lines) = sync_channel(4);
        let recording = Recording {
            settings: Record { path: "unused".into(), max_bytes: 1, files: 1, sample: 1.0 },
            queue,
            queued_bytes: Arc::default(),
            queued_lines: Arc::default(),
            is_ending: Arc::default(),
            thread: Mutex::new(None),
            counts: Arc::clone(&counts),
        };
        let put = || recording.put(Line { at: Timestamp::EPOCH, rest: b"x".to_vec() });
        put();
        put();
        drop(lines);
        put();
        assert_eq!(counts.dropped.load(Relaxed), 1);
        drop(recording);
        assert_eq!(counts.dropped.load(Relaxed), 3);
    }

    /// A recording that ends while the service still decides must account for every line.
    #[test]
    fn every_line_that_was_put_before_during_or_after_the_end_is_written_or_counted() {
        const THREADS: u64 = 4;
        const LINES: u64 = 3000;
        let folder = slidegate_testkit::TempDir::new("recorder-end");
        let path = folder.path().join("r.jsonl");
        let recorder = Recorder::default();
        let settings = Record { path: path.clone(), max_bytes: 1 << 30, files: 1, sample: 1.0 };
        recorder.activate(recorder.prepare(Some(&settings)).unwrap());
        let recording = recorder.active.load_full().unwrap();
        let begun = std::sync::Barrier::new(usize::try_from(THREADS).unwrap() + 1);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for number in 0..LINES {
                        if number == LINES / 2 {
                            begun.wait();
                        }
                        recording.put(Line { at: Timestamp::EPOCH, rest: b"\"}\n".to_vec() });
                    }
                });
            }
            begun.wait();
            recorder.end();
        });
        // What was put before the end is in the file, as the queue has room for all of it.
        let counts = Arc::clone(&recorder.counts);
        assert!(counts.written.load(Relaxed) >= THREADS * LINES / 2);
        drop(recording);
        let [written, dropped, failed] =
            [&counts.written, &counts.dropped, &counts.failed].map(|count| count.load(Relaxed));
        assert_eq!((written + dropped, failed), (THREADS * LINES, 0));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count() as u64, written);
    }

    /// A value with a quote, a newline or no encoding must not break the line or become another.
    #[test]
    fn every_value_is_one_line_of_json() {
        let recorder = Recorder::default();
        for bytes in [&b"a\"}\n"[..], b"\0\x1f", b"\xff%", "\u{2028}\u{eb}".as_bytes(), b""] {
            let line = line(&recorder, &Request::new().with("user", bytes).with_cost(7), "s");
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            let whole: serde_json::Value = serde_json::from_str(&format!("{{\"time\":\"{line}")).unwrap();
            assert_eq!(whole["cost"], 7);
            if let Ok(text) = std::str::from_utf8(bytes) {
                assert_eq!(whole["attributes"]["user"], text);
            }
        }
        assert_ne!(escaped(b"\xff%"), escaped(b"%FF%"));
    }
}
