//! The exporter: batches of spans, and the thread that sends them.
//!
//! A thread that decides writes into a batch of its own. The lock of a batch is held for the time of
//! one span, and a thread that finds it taken uses the next one, so that no decision waits. Full
//! batches go to a queue. A request is sent as soon as there are [`FULL_SENT`] of them, and once per
//! [`EVERY`] with all spans that there are.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use ring::rand::{SecureRandom as _, SystemRandom};
use slidegate::{Clock as _, SystemClock};

use super::attributes::Scratch;
use super::collector::{ANSWER_TIMEOUT, Collector, Retry};
use super::otlp::{Attributes, Batch, SharedFields, SpanHead};
use crate::telemetry::per_thread::{PerThread, thread};

/// Bytes of a batch: some 250 spans, so that they stay in the cache of the processor until they are
/// sent.
const BATCH: usize = 32 * 1024;
/// Batches that are written to. Memory for each is allocated when it is first used.
const OPEN: usize = 16;
/// Maximum full batches that wait.
const MAX_QUEUED: usize = 88;
/// Full batches that are sent in one request, of some 2,000 spans and 800 kB: so many that the
/// request is a small part of their cost, and below the bound of most proxies, 1 MB.
const FULL_SENT: usize = 8;
/// Maximum memory of batches: 4 MiB, some 30,000 spans. Those in flight are full ones, and what was
/// in the open ones.
const _: () = assert!((OPEN + MAX_QUEUED + FULL_SENT + OPEN) * BATCH == 4 << 20);
/// Maximum delay of a span for batching.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum wait for the last spans at shutdown.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// Maximum repetitions of a request that the collector did not accept, and the first wait; it
/// doubles. A request and its repetitions start within [`ANSWER_TIMEOUT`].
const MAX_RETRIES: u32 = 3;
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Pause after a request that was not accepted in the end; it doubles while the next ones are not
/// either. Spans for which there is no memory meanwhile are dropped.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Takes spans and sends them.
#[derive(Debug)]
pub(super) struct Exporter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    collector: Collector,
    open: PerThread<Mutex<OpenBatch>>,
    queue: Mutex<Queue>,
    /// The number of full batches, to be read without the lock.
    queued: AtomicUsize,
    /// There are enough full batches, or the end.
    work: Condvar,
    /// The thread has ended.
    ended: Condvar,
    in_flight: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    last_error: Mutex<String>,
}

#[derive(Debug, Default)]
struct Queue {
    full: VecDeque<Batch>,
    /// Memory to be used again.
    free: Vec<Vec<u8>>,
    is_ending: bool,
    has_ended: bool,
}

/// A batch that is written to, and what a thread needs to write a span.
#[derive(Debug)]
pub(super) struct OpenBatch {
    pub(super) batch: Batch,
    /// Random ids. They have to be unique, not secret.
    pub(super) random: SmallRng,
    pub(super) scratch: Scratch,
}

/// A snapshot of the counters of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spans {
    pub(crate) sent: u64,
    /// The collector rejected them or did not respond.
    pub(crate) failed: u64,
    /// There was no memory for them, or the service ended.
    pub(crate) dropped: u64,
}

impl Default for OpenBatch {
    fn default() -> Self {
        let mut seed = <SmallRng as rand::SeedableRng>::Seed::default();
        SystemRandom::new().fill(&mut seed).expect("the system has random numbers");
        Self { batch: Batch::default(), random: SmallRng::from_seed(seed), scratch: Scratch::default() }
    }
}

impl Exporter {
    /// Starts the thread.
    pub(super) fn start(collector: Collector) -> Self {
        let shared = Arc::new(Shared {
            collector,
            open: PerThread::new(OPEN),
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            work: Condvar::new(),
            ended: Condvar::new(),
            in_flight: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            last_error: Mutex::default(),
        });
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("spans".into())
            .spawn(move || of_thread.run())
            .expect("the system can start a thread");
        Self(shared)
    }

    /// The batch of this thread.
    #[inline]
    pub(super) fn open(&self) -> MutexGuard<'_, OpenBatch> {
        let thread = thread();
        let free = (thread..thread + OPEN).find_map(|number| match self.0.open.of(number).try_lock() {
            Ok(open) => Some(open),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        free.unwrap_or_else(|| lock(self.0.open.of(thread)))
    }

    /// Writes a span to the batch, or counts it as dropped.
    #[inline]
    pub(super) fn add(
        &self,
        batch: &mut Batch,
        head: &SpanHead<'_>,
        shared: &SharedFields,
        attributes: impl FnOnce(&mut Attributes<'_>),
    ) {
        let has_room = batch.has_room() || self.0.renew(batch);
        if !(has_room && batch.add(head, shared, attributes)) {
            self.0.dropped.fetch_add(1, Relaxed);
        }
    }

    /// The counters of spans.
    pub(super) fn spans(&self) -> Spans {
        let Shared { sent, failed, dropped, .. } = &*self.0;
        Spans { sent: sent.load(Relaxed), failed: failed.load(Relaxed), dropped: dropped.load(Relaxed) }
    }

    /// Why the last request failed. Empty if it did not.
    pub(super) fn last_error(&self) -> String {
        lock(&self.0.last_error).clone()
    }

    /// Sends the remaining spans, within the shutdown timeout. Those that were not sent are counted
    /// as dropped.
    pub(super) fn end(&self) {
        let shared = &*self.0;
        let mut queue = lock(&shared.queue);
        queue.is_ending = true;
        shared.work.notify_one();
        let ended = shared.ended.wait_timeout_while(queue, LAST_SPANS, |queue| !queue.has_ended);
        let (mut queue, _) = ended.unwrap_or_else(PoisonError::into_inner);
        let queued: u64 = queue.full.drain(..).map(|batch| batch.spans()).sum();
        drop(queue);
        let open = shared.open.iter().map(|open| std::mem::take(&mut lock(open).batch).spans()).sum::<u64>();
        shared.dropped.fetch_add(queued + open + shared.in_flight.swap(0, Relaxed), Relaxed);
    }
}

impl Shared {
    /// Makes room in a batch that is full or has no memory. `false`: there is none.
    #[cold]
    fn renew(&self, batch: &mut Batch) -> bool {
        let is_full = batch.spans() > 0;
        if is_full && self.queued.load(Relaxed) >= MAX_QUEUED {
            return false;
        }
        let mut queue = lock(&self.queue);
        if is_full && queue.full.len() >= MAX_QUEUED {
            return false;
        }
        let memory = queue.free.pop().unwrap_or_else(|| Vec::with_capacity(BATCH));
        let full = std::mem::replace(batch, Batch::new(memory));
        if is_full {
            queue.full.push_back(full);
            self.queued.store(queue.full.len(), Relaxed);
            if queue.full.len() >= FULL_SENT {
                self.work.notify_one();
            }
        }
        true
    }

    /// The thread: sends spans until the end.
    fn run(&self) {
        let clock = SystemClock::new();
        let mut gathered_at = clock.now();
        let mut pause = Duration::ZERO;
        loop {
            let (full, is_ending) = self.take_full(EVERY.saturating_sub(clock.now() - gathered_at));
            self.send(&full, &mut pause);
            let mut gathered = Vec::new();
            if is_ending || clock.now() - gathered_at >= EVERY {
                gathered_at = clock.now();
                let open = self.open.iter().map(|open| std::mem::take(&mut lock(open).batch));
                gathered.extend(open.filter(|batch| batch.spans() > 0));
            }
            self.send(&gathered, &mut pause);
            let mut queue = lock(&self.queue);
            if full.is_empty() {
                queue.free.clear();
            }
            queue.free.extend(full.into_iter().chain(gathered).map(Batch::into_memory));
            if is_ending && queue.full.is_empty() {
                queue.has_ended = true;
                self.ended.notify_all();
                return;
            }
        }
    }

    /// Full batches: as soon as there are enough, after a wait those that there are. And whether the
    /// service ends.
    fn take_full(&self, wait: Duration) -> (Vec<Batch>, bool) {
        let is_waiting = |queue: &mut Queue| queue.full.len() < FULL_SENT && !queue.is_ending;
        let waited = self.work.wait_timeout_while(lock(&self.queue), wait, is_waiting);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let count = queue.full.len().min(FULL_SENT);
        let full = queue.full.drain(..count).collect();
        self.queued.store(queue.full.len(), Relaxed);
        (full, queue.is_ending)
    }

    /// Sends these spans and counts them. Pauses after a failure.
    fn send(&self, batches: &[Batch], pause: &mut Duration) {
        let spans = batches.iter().map(Batch::spans).sum();
        if spans == 0 {
            return;
        }
        self.in_flight.store(spans, Relaxed);
        let failed = self.send_until_accepted(batches, spans);
        // Zero if the service has ended meanwhile and has counted them.
        if self.in_flight.swap(0, Relaxed) > 0 {
            self.sent.fetch_add(spans - failed, Relaxed);
            self.failed.fetch_add(failed, Relaxed);
        }
        *pause = next_pause(*pause, failed == spans);
        if !pause.is_zero() {
            self.pause(*pause);
        }
    }

    /// How many of these spans were not accepted.
    fn send_until_accepted(&self, batches: &[Batch], spans: u64) -> u64 {
        let clock = SystemClock::new();
        let started = clock.now();
        let (mut retries, mut backoff) = (0, FIRST_RETRY);
        loop {
            let Err(rejection) = self.collector.send(batches) else {
                lock(&self.last_error).clear();
                return 0;
            };
            *lock(&self.last_error) = rejection.message;
            let wait = match rejection.retry {
                Retry::No => None,
                Retry::Later => Some(backoff),
                Retry::After(asked) => Some(asked.max(backoff)),
            };
            let is_in_time = |wait: &Duration| clock.now() - started + *wait < ANSWER_TIMEOUT;
            let is_repeated =
                retries < MAX_RETRIES && wait.filter(is_in_time).is_some_and(|wait| self.pause(wait));
            if !is_repeated {
                return rejection.spans.unwrap_or(spans).min(spans);
            }
            retries += 1;
            backoff *= 2;
        }
    }

    /// Waits this long. `false` if the service ends.
    fn pause(&self, wait: Duration) -> bool {
        let queue = lock(&self.queue);
        let waited = self.work.wait_timeout_while(queue, wait, |queue| !queue.is_ending);
        let (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !queue.is_ending
    }
}

/// The pause after a request.
fn next_pause(last: Duration, has_failed: bool) -> Duration {
    if has_failed { (2 * last).clamp(FIRST_PAUSE, MAX_PAUSE) } else { Duration::ZERO }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use opentelemetry::trace::{SpanId, TraceId};
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use prost::Message as _;
    use slidegate::Timestamp;

    use super::*;
    use crate::config;

    /// Longer than anything takes here.
    const LONG: Duration = Duration::from_secs(60);
    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

    /// A collector that responds with these, and then accepts. It returns the ids of spans.
    fn collector(responses: Vec<Vec<u8>>) -> (String, Receiver<Vec<u64>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        let responses = Arc::new(Mutex::new(VecDeque::from(responses)));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (sender, responses) = (sender.clone(), Arc::clone(&responses));
                std::thread::spawn(move || serve(&stream.unwrap(), &sender, &responses));
            }
        });
        (url, requests)
    }

    fn serve(mut stream: &TcpStream, sender: &Sender<Vec<u64>>, responses: &Mutex<VecDeque<Vec<u8>>>) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            let field = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok();
            let mut body = vec![0; head.lines().find_map(field).unwrap()];
            reader.read_exact(&mut body).unwrap();
            assert!(body.len() < 1_000_000, "{}", body.len());
            let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
            let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            let spans = scopes.flat_map(|scope| scope.spans);
            let ids = spans.map(|span| u64::from_be_bytes(span.span_id.try_into().unwrap())).collect();
            let response = lock(responses).pop_front().unwrap_or_else(|| OK.into());
            // A test that has seen enough is gone.
            let _ = sender.send(ids);
            stream.write_all(&response).unwrap();
        }
    }

    fn exporter(endpoint: String) -> Exporter {
        let settings = config::Traces {
            endpoint,
            headers: BTreeMap::new(),
            sample_ratio: 1.0,
            service_name: "slidegate".into(),
        };
        Exporter::start(Collector::new(&settings).unwrap())
    }

    /// A span of some 250 bytes with this id.
    fn add(exporter: &Exporter, id: u64) {
        let span_id = SpanId::from(id);
        let (start, end) = (Timestamp::from_secs(1), Timestamp::from_secs(2));
        let head = SpanHead { trace_id: TraceId::from(1), span_id, parent: None, start, end };
        let value = "x".repeat(150);
        exporter.add(&mut exporter.open().batch, &head, &SharedFields::default(), |span| {
            span.text("key", &value);
        });
    }

    /// Waits until all of these spans are counted.
    fn counted(exporter: &Exporter, spans: u64) -> Spans {
        for _ in 0..6000 {
            let Spans { sent, failed, dropped } = exporter.spans();
            if sent + failed + dropped == spans {
                return exporter.spans();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{:?}", exporter.spans());
    }

    fn response(status: &str, more: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\n{more}content-length: 0\r\n\r\n").into()
    }

    /// Several threads fill batches while they are sent and gathered: no span may be lost or sent
    /// twice, and each must be where a collector finds it.
    #[test]
    fn every_span_arrives_once() {
        let (url, requests) = collector(Vec::new());
        let exporter = exporter(url);
        let (threads, each) = (4, 2_500);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let exporter = &exporter;
                scope.spawn(move || (0..each).for_each(|n| add(exporter, thread * each + n + 1)));
            }
        });
        let spans = threads * each;
        assert_eq!(counted(&exporter, spans), Spans { sent: spans, failed: 0, dropped: 0 });
        exporter.end();
        assert_eq!(exporter.spans(), Spans { sent: spans, failed: 0, dropped: 0 });
        let arrived: Vec<u64> = requests.try_iter().flatten().collect();
        assert_eq!(arrived.len() as u64, spans);
        assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>(), (1..=spans).collect());
        assert_eq!(exporter.last_error(), "");
    }

    /// A few spans must not wait for many.
    #[test]
    fn few_spans_are_sent_soon() {
        let (url, requests) = collector(Vec::new());
        let exporter = exporter(url);
        for id in 1..4 {
            add(&exporter, id);
            assert_eq!(requests.recv_timeout(LONG).unwrap(), [id]);
        }
    }

    /// What a collector cannot take now it may take later; what it cannot read it never can.
    #[test]
    fn requests_are_repeated_if_and_only_if_that_may_help() {
        let busy = [
            response("503 Busy", ""),
            response("429 Too many", "retry-after: 0\r\n"),
            response("502 Bad gateway", ""),
        ];
        let (url, requests) = collector(busy.to_vec());
        let once_busy = exporter(url);
        add(&once_busy, 1);
        assert_eq!(counted(&once_busy, 1), Spans { sent: 1, failed: 0, dropped: 0 });
        assert_eq!((requests.try_iter().count(), once_busy.last_error()), (4, String::new()));

        for (always, times, error) in [
            (response("503 Busy", ""), 4, "the collector responded with 503 Service Unavailable"),
            (response("400 Bad", ""), 1, "the collector responded with 400 Bad Request"),
            (
                response("429 Later", "retry-after: 3600\r\n"),
                1,
                "the collector responded with 429 Too Many Requests",
            ),
        ] {
            let (url, requests) = collector(vec![always; 9]);
            let exporter = exporter(url);
            add(&exporter, 1);
            assert_eq!(counted(&exporter, 1), Spans { sent: 0, failed: 1, dropped: 0 });
            assert_eq!((requests.try_iter().count(), exporter.last_error().as_str()), (times, error));
        }
    }

    /// A collector that is down or rejects everything must not be asked by every instance without a
    /// pause.
    #[test]
    fn a_collector_that_rejects_everything_is_asked_less_and_less() {
        let (url, requests) = collector(vec![response("400 Bad", ""); 3]);
        let exporter = exporter(url);
        let clock = SystemClock::new();
        let mut asked_at = Vec::new();
        while asked_at.len() < 3 {
            // So many that there are always full batches.
            (1..1000).for_each(|id| add(&exporter, id));
            if requests.recv_timeout(Duration::from_millis(1)).is_ok() {
                asked_at.push(clock.now());
            }
        }
        let pauses: Vec<_> = asked_at.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses[1] > FIRST_PAUSE * 3 / 2, "{pauses:?}");

        let mut pause = Duration::ZERO;
        let pauses: Vec<_> = (0..9)
            .map(|_| {
                pause = next_pause(pause, true);
                pause.as_secs()
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(next_pause(pause, false), Duration::ZERO);
    }

    /// A collector may keep some of the spans only, and says how many.
    #[test]
    fn spans_that_a_collector_rejects_are_not_counted_as_sent() {
        let partial_success =
            ExportTracePartialSuccess { rejected_spans: 2, error_message: "too old".into() };
        let body = ExportTraceServiceResponse { partial_success: Some(partial_success) }.encode_to_vec();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        let (url, _requests) = collector(vec![[head.as_bytes(), &body].concat()]);
        let exporter = exporter(url);
        (1..6).for_each(|id| add(&exporter, id));
        assert_eq!(counted(&exporter, 5), Spans { sent: 3, failed: 2, dropped: 0 });
        assert_eq!(exporter.last_error(), "the collector rejected spans: too old");
    }

    /// A collector that hangs may cost spans, but neither decisions nor more memory than is stated.
    #[test]
    fn a_collector_that_hangs_costs_a_bounded_number_of_spans_that_are_all_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = exporter(format!("http://{}/v1/traces", listener.local_addr().unwrap()));
        // Of one thread: its own batch, the queue, and those in flight.
        let most = u64::try_from((1 + MAX_QUEUED + FULL_SENT) * BATCH / 200).unwrap();
        let spans = 3 * most;
        (1..=spans).for_each(|id| add(&exporter, id));
        let Spans { sent, failed, dropped } = exporter.spans();
        assert_eq!((sent, failed), (0, 0));
        assert!((spans - most..spans).contains(&dropped), "{dropped} of {spans}");
        let held = lock(&exporter.0.queue);
        assert!(held.full.len() == MAX_QUEUED);
        drop(held);
        exporter.end();
        assert_eq!(exporter.spans(), Spans { sent: 0, failed: 0, dropped: spans });
    }
}
