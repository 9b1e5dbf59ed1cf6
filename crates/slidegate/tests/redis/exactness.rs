//! Exactness: what several processes let in together, judged from outside.
//!
//! Each process notes when it sent and when it received what was admitted; the charge lies somewhere between. The judge
//! knows only those times and the limits, and calls too many what is too many wherever between the charges lay.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slidegate::{DecisionSource, Policy, Quota, Request, SharedGate};
use slidegate_testkit::redis::RedisServer;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::callers::{gate, options};
use crate::harness;

/// Processes that share the limits.
const PROCESSES: usize = 3;
/// Callers in each of them. Every other one asks for the same user.
const CALLERS: usize = 16;
const USERS: usize = 4;

const WINDOW: Duration = Duration::from_millis(250);
/// How long the callers ask: a whole number of windows.
const RUN: Duration = Duration::from_secs(2);
/// All users together, and each of them: the first wants more than its limit, and all together want more than theirs.
const WIDE: u64 = 400;
const NARROW: u64 = 150;

/// What is available at least is every window's limit; what may be missing of it. After each window callers come back
/// only when they next ask, which on a busy machine may be windows later: two of eight must be used up.
const MARGIN_PERCENT: u64 = 75;
/// Where a charge in one slot is refunded because another slot denied, others have been denied for it meanwhile.
const MARGIN_SPREAD_PERCENT: u64 = 80;

/// How far the clocks of two processes of one machine may be apart: they are read at the start, and all but stand still.
const CLOCKS_APART: Duration = Duration::from_millis(1);

/// What a process is told, in its environment.
const URL: &str = "SLIDEGATE_EXACTNESS_URL";
const MODE: &str = "SLIDEGATE_EXACTNESS_MODE";

/// How the processes' gates are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Coalescing,
    Alone,
    Tagged,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Coalescing, Self::Alone, Self::Tagged];

    fn name(self) -> &'static str {
        match self {
            Self::Coalescing => "coalescing",
            Self::Alone => "alone",
            Self::Tagged => "tagged",
        }
    }
}

/// One request that was admitted, in microseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Admitted {
    sent: u64,
    received: u64,
    /// When the server says that it charged.
    at: u64,
}

/// The most that were certainly admitted within one window.
fn most_certain(admitted: &[Admitted], window: Duration) -> u64 {
    let window_us = micros(window - CLOCKS_APART);
    let mut by_sent = admitted.to_vec();
    by_sent.sort_unstable_by_key(|one| one.sent);
    let within = |from: usize| {
        let end = by_sent[from].sent + window_us;
        let sent = by_sent[from..].iter().take_while(|one| one.sent <= end);
        sent.filter(|one| one.received <= end).count() as u64
    };
    (0..by_sent.len()).map(within).max().unwrap_or(0)
}

/// The most that were admitted within one window by the server's own account.
fn most_told(admitted: &[Admitted], window: Duration) -> u64 {
    let mut at: Vec<_> = admitted.iter().map(|one| one.at).collect();
    at.sort_unstable();
    let within = |from: usize| {
        let end = at[from] + micros(window);
        at[from..].iter().take_while(|one| **one < end).count() as u64
    };
    (0..at.len()).map(within).max().unwrap_or(0)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap()
}

/// A judge who lets everything pass proves nothing.
#[test]
fn the_judge_counts_what_lies_in_one_window_wherever_the_charges_were() {
    let one = |sent, received, at| Admitted { sent, received, at };
    let window = Duration::from_micros(1000) + CLOCKS_APART;
    let three = [one(0, 10, 5), one(500, 510, 505), one(990, 1000, 995)];
    assert_eq!(most_certain(&three, window), 3);
    // The last one may have been charged after the window.
    let two = [one(0, 10, 5), one(500, 510, 505), one(990, 1001, 995)];
    assert_eq!(most_certain(&two, window), 2);
    // The first one may have been charged before it.
    let early = [one(0, 900, 5), one(1, 10, 6), one(1001, 1001, 1001)];
    assert_eq!(most_certain(&early, window), 2);
    let window = Duration::from_micros(1000);
    assert_eq!(most_told(&[one(0, 0, 5), one(0, 0, 1004)], window), 2);
    assert_eq!(most_told(&[one(0, 0, 5), one(0, 0, 1005)], window), 1);
}

/// A process of its own, of this very program.
struct Client {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Client {
    fn start(url: &str, mode: Mode) -> Self {
        let arguments = ["--exact", "exactness::a_client_of_the_other_tests", "--ignored", "--nocapture"];
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(arguments).env(URL, url).env(MODE, mode.name());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    fn until_ready(&mut self) {
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "a client has ended before it was ready");
        }
    }

    fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }

    /// What was admitted, by user.
    fn admitted(mut self) -> Vec<(usize, [Admitted; 2])> {
        let lines = (&mut self.said).lines().map_while(Result::ok);
        let admitted = lines.filter_map(|line| {
            let numbers = line.strip_prefix("admitted ")?;
            let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
            let [user, sent, received, wide, narrow] = numbers[..] else { panic!("{line}") };
            let one = |at| Admitted { sent, received, at };
            Some((usize::try_from(user).unwrap(), [one(wide), one(narrow)]))
        });
        let admitted = admitted.collect();
        assert!(self.child.wait().unwrap().success(), "a client has failed");
        admitted
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the other tests start several of.
#[test]
#[ignore = "asks a server that another test names"]
fn a_client_of_the_other_tests() {
    let (url, mode) = (env::var(URL).unwrap(), env::var(MODE).unwrap());
    let mode = Mode::ALL.into_iter().find(|known| known.name() == mode).unwrap();
    let options = options(&url).deadline(Duration::from_secs(10));
    let options = match mode {
        Mode::Coalescing => options,
        Mode::Alone => options.without_batching().without_denial_cache(),
        Mode::Tagged => options.hash_tag("tenant"),
    };
    let policy =
        |name, limit, scope| Policy::new(name, Quota::new(limit, WINDOW).unwrap()).unwrap().scope([scope]);
    let gate = gate([policy("wide", WIDE, "tenant"), policy("narrow", NARROW, "user")], options);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut lines = String::new();
    runtime.block_on(async {
        // Connected, and every script known, before the others are.
        for user in 0..USERS {
            let user = user.to_string();
            let request = Request::new().with("tenant", "t").with("user", &user);
            assert!(gate.peek(&request).await.iter().all(|one| one.source == DecisionSource::Store));
        }
        println!("ready");
        io::stdin().read_line(&mut String::new()).unwrap();

        let (start, wall) = both_clocks();
        let callers: JoinSet<_> = (0..CALLERS).map(|number| ask(gate.clone(), number, start)).collect();
        for (user, sent, received, at) in callers.join_all().await.into_iter().flatten() {
            let [sent, received] = [sent, received].map(|moment| micros(wall + (moment - start)));
            writeln!(lines, "admitted {user} {sent} {received} {} {}", at[0], at[1]).unwrap();
        }
        let (end, wall_at_end) = both_clocks();
        let apart = wall_at_end.abs_diff(wall + (end - start));
        assert!(apart < CLOCKS_APART / 2, "the machine's clock was set by {apart:?} meanwhile");
    });
    print!("{lines}");
}

/// The only clock that several processes read alike.
#[allow(clippy::disallowed_methods)] // The judge must not read the time as the limiter does.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A moment on both clocks: of many readings the one with the least time between them, as a busy machine may stop the
/// process there.
fn both_clocks() -> (Instant, Duration) {
    let readings = (0..1000).map(|_| (Instant::now(), wall(), Instant::now()));
    let (before, wall, _) = readings.min_by_key(|(before, _, after)| *after - *before).unwrap();
    (before, wall)
}

/// Asks again and again until the run is over.
async fn ask(
    gate: Arc<SharedGate>,
    number: usize,
    start: Instant,
) -> Vec<(usize, Instant, Instant, [u64; 2])> {
    // 0 0 1 0 2 0 3 0 0 0 ...
    let user = if number.is_multiple_of(2) { number / 2 % USERS } else { 0 };
    let name = user.to_string();
    let request = Request::new().with("tenant", "t").with("user", &name);
    let mut admitted = Vec::new();
    while start.elapsed() < RUN {
        let sent = Instant::now();
        let decisions = gate.check(&request).await;
        let received = Instant::now();
        let mut at = [0, 0];
        for (at, one) in at.iter_mut().zip(decisions.iter()) {
            assert!(
                matches!(one.source, DecisionSource::Store | DecisionSource::CachedDenial),
                "{:?}",
                gate.stats()
            );
            *at = one.at.as_micros();
        }
        if decisions.is_allowed() {
            admitted.push((user, sent, received, at));
        } else {
            // As clients do that come back as soon as they may, about.
            sleep(Duration::from_millis(1)).await;
        }
        tokio::task::yield_now().await;
    }
    admitted
}

/// Lets the processes loose on a store, and judges what they were told.
fn judge(url: &str, mode: Mode, margin_percent: u64) {
    let mut clients: Vec<_> = (0..PROCESSES).map(|_| Client::start(url, mode)).collect();
    clients.iter_mut().for_each(Client::until_ready);
    clients.iter_mut().for_each(Client::go);
    let admitted: Vec<_> = clients.into_iter().flat_map(Client::admitted).collect();

    let wide: Vec<_> = admitted.iter().map(|(_, [wide, _])| *wide).collect();
    let mut narrow = BTreeMap::<usize, Vec<Admitted>>::new();
    for (user, [_, one]) in &admitted {
        narrow.entry(*user).or_default().push(*one);
    }
    assert_eq!(narrow.len(), USERS);
    let keys = [(WIDE, &wide)].into_iter().chain(narrow.values().map(|one| (NARROW, one)));
    for (limit, admitted) in keys {
        let (certain, told) = (most_certain(admitted, WINDOW), most_told(admitted, WINDOW));
        assert!(certain <= limit, "{certain} instead of {limit} in one window, {mode:?}");
        assert!(told <= limit, "{told} instead of {limit} in one window by the server's clock, {mode:?}");
    }
    let windows = micros(RUN) / micros(WINDOW);
    for (limit, admitted, who) in
        [(WIDE, wide.len(), "all users"), (NARROW, narrow[&0].len(), "the first user")]
    {
        let available = limit * windows;
        let least = available * (100 - margin_percent) / 100;
        println!("{mode:?}, {who}: {admitted} of {available}, at most {}", most_certain(&wide, WINDOW));
        assert!(admitted as u64 >= least, "{who}: {admitted} of {available} that were available, {mode:?}");
    }
}

/// The promise of the whole project, with calls that carry many checks.
#[test]
fn three_processes_on_one_server_let_in_what_the_limits_say_in_every_window() {
    let server = RedisServer::start();
    judge(&server.url_as_user(), Mode::Coalescing, MARGIN_PERCENT);
}

/// The same without anything that spares the server calls.
#[test]
fn three_processes_that_call_for_each_check_let_in_the_same() {
    let server = RedisServer::start();
    judge(&server.url_as_user(), Mode::Alone, MARGIN_PERCENT);
}

/// Policies of one request that lie on different masters are no reason to let in more.
#[test]
fn three_processes_on_a_cluster_never_let_in_more_than_the_limits_say() {
    let cluster = harness::cluster();
    for mode in [Mode::Coalescing, Mode::Alone] {
        judge(&cluster.url_as_user(), mode, MARGIN_SPREAD_PERCENT);
    }
}

/// Kept together in one slot, they let in all that is available there as well.
#[test]
fn three_processes_on_a_cluster_with_a_hash_tag_let_in_what_the_limits_say() {
    let cluster = harness::cluster();
    judge(&cluster.url_as_user(), Mode::Tagged, MARGIN_PERCENT);
}
