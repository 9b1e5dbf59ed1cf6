//! Exactness: what several processes admit together, judged from outside.
//!
//! Two rounds. In the first, nothing expires: the processes send a fixed number of requests, more
//! than the limits hold, and exactly the limits are admitted. In the second, windows are short, and
//! the processes go on until a fixed number was admitted: no window may contain more than its
//! limit. Neither depends on how fast the machine is.
//!
//! In the second round each process records when it sent and received what was admitted; the charge
//! lies somewhere between. The judge knows only those times and the limits, and counts what was in
//! one window wherever the charges were.

use std::env;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slidegate::store::ServiceStore;
use slidegate::{DecisionSource, LeaseLength, Policy, Quota, Request};
use slidegate_redis::{RedisGate, RedisOptions};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::until;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep};

use crate::callers::{gate, options};
use crate::harness;

/// Processes that share the limits.
const PROCESSES: usize = 3;
/// Callers in each process. Every other one asks for the first user.
const CALLERS: usize = 16;
const USERS: usize = 4;

/// The limits of all users together and of each user. The first user wants more than its limit, and
/// all together want more than theirs.
const WIDE: u64 = 400;
const NARROW: u64 = 150;

/// The window of the first round: nothing expires, not even if somebody sets the machine's clock.
const LONG_WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Requests of each caller in the first round, which is run twice. With 20, the limit of all users
/// binds: the first user asks 600 times and each other one 120 times. With 10, only the first
/// user's limit binds: it asks 300 times, each other one 60 times, and 330 of all are admitted.
const REQUESTS: [u64; 2] = [20, 10];
/// Callers of each user but the first.
const CALLERS_OF_OTHERS: u64 = (PROCESSES * CALLERS / 2 / USERS) as u64;

/// The window of the second round.
const SHORT_WINDOW: Duration = Duration::from_millis(250);
/// How long leases last: long enough that a busy machine asks for some.
const LEASE: Duration = Duration::from_millis(100);
/// What each process has admitted when the second round ends: all together six windows' worth.
const ADMITTED_EACH: u64 = 6 * WIDE / PROCESSES as u64;
/// The deadline of a decision. What a busy machine decides later says nothing of limits.
const PATIENCE: Duration = Duration::from_secs(60);
/// No round takes so long: a limiter that admits too little hangs.
const HANGS: Duration = Duration::from_secs(120);

/// How far apart the clocks of two processes of one machine may be: each reads the wall clock once.
const CLOCKS_APART: Duration = Duration::from_millis(1);

/// A process says so of a round in which the machine's clock was set, which says nothing of windows.
const CLOCK_WAS_SET: &str = "the machine's clock was set";

/// The environment of a process.
const URL: &str = "SLIDEGATE_EXACTNESS_URL";
const MODE: &str = "SLIDEGATE_EXACTNESS_MODE";

/// How the processes' gates are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Batched,
    Alone,
    Tagged,
    Leased,
}

impl Mode {
    const ALL: [Self; 4] = [Self::Batched, Self::Alone, Self::Tagged, Self::Leased];

    fn name(self) -> &'static str {
        match self {
            Self::Batched => "batched",
            Self::Alone => "alone",
            Self::Tagged => "tagged",
            Self::Leased => "leased",
        }
    }

    fn options(self, url: &str) -> RedisOptions {
        let options = options(url).with_deadline(PATIENCE);
        match self {
            Self::Batched | Self::Leased => options,
            Self::Alone => options.without_batching().without_denial_cache(),
            Self::Tagged => options.with_hash_tag("tenant"),
        }
    }
}

/// One request that was admitted, in microseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Admitted {
    sent: u64,
    received: u64,
    /// When it was charged, by the server's clock.
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

/// The most that were admitted within one window by the server's clock.
fn most_by_server(admitted: &[Admitted], window: Duration) -> u64 {
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

/// A judge who accepts everything proves nothing.
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
    assert_eq!(most_by_server(&[one(0, 0, 5), one(0, 0, 1004)], window), 2);
    assert_eq!(most_by_server(&[one(0, 0, 5), one(0, 0, 1005)], window), 1);
}

/// A process of its own, of this very program.
struct Client {
    child: Child,
    said: BufReader<ChildStdout>,
    /// Requests that leases admitted so far in the rounds of the short window.
    leased: u64,
}

impl Client {
    fn start(url: &str, mode: Mode) -> Self {
        let arguments = ["--exact", "exactness::a_client_of_the_other_tests", "--ignored", "--nocapture"];
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(arguments).env(URL, url).env(MODE, mode.name());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said, leased: 0 }
    }

    /// The lines up to the next `ready`.
    fn until_ready(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "a client ended before it was ready");
            if line.trim_end().ends_with("ready") {
                return lines;
            }
            lines.push(line);
        }
    }

    /// Starts the next round.
    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// What was admitted in the round that began last, by user, and whether the clock went on as it should.
    fn admitted(&mut self) -> (Vec<(usize, [Admitted; 2])>, bool) {
        let lines = self.until_ready();
        let leased = lines.iter().find_map(|line| line.trim_end().strip_prefix("leased ")?.parse().ok());
        self.leased = leased.unwrap_or(self.leased);
        let is_steady = lines.iter().all(|line| line.trim_end() != CLOCK_WAS_SET);
        let admitted = lines.iter().filter_map(|line| {
            let numbers = line.trim_end().strip_prefix("admitted ")?;
            let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
            let [user, sent, received, wide, narrow] = numbers[..] else { panic!("{line}") };
            let one = |at| Admitted { sent, received, at };
            Some((usize::try_from(user).unwrap(), [one(wide), one(narrow)]))
        });
        (admitted.collect(), is_steady)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gate of this window. Policies of another window have other names, so they share no key.
fn limits(mode: Mode, options: RedisOptions, window: Duration) -> Arc<RedisGate> {
    let policy = |kind, limit| {
        let name = format!("{kind}-{}", window.as_millis());
        let policy = Policy::new(&name, Quota::new(limit, window).unwrap()).unwrap();
        policy.with_lease((mode == Mode::Leased).then_some(LeaseLength::Fixed(LEASE)))
    };
    let wide = policy("wide", WIDE).with_scope(["tenant"]);
    gate([wide, policy("narrow", NARROW).with_scope(["tenant", "user"])], options)
}

/// Whether the store decided. No round may fall back: the judge knows only what the store decides.
fn is_by_store(source: DecisionSource) -> bool {
    !source.is_fallback()
}

/// What the other tests start several of.
#[test]
#[ignore = "asks a server that another test names"]
fn a_client_of_the_other_tests() {
    let (url, mode) = (env::var(URL).unwrap(), env::var(MODE).unwrap());
    let mode = Mode::ALL.into_iter().find(|known| known.name() == mode).unwrap();
    let [long, short] = [LONG_WINDOW, SHORT_WINDOW].map(|window| limits(mode, mode.options(&url), window));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Every client is connected and has loaded its scripts before any of them begins.
        for gate in [&long, &short] {
            let request = Request::new().with("tenant", "t").with("user", "0");
            assert!(
                gate.peek(&request).await.iter().all(|one| one.decision().source() == DecisionSource::Store)
            );
        }
        for requests in REQUESTS {
            round(&long, &tenant(mode, requests), Extent::Requests(requests)).await;
        }
        loop {
            round(&short, "t", Extent::Admitted(ADMITTED_EACH)).await;
            let leased: u64 = short.store().primary().stats().leases.values().map(|one| one.admitted).sum();
            println!("leased {leased}");
        }
    });
}

/// The tenant of a round: nothing expires, so each has its own.
fn tenant(mode: Mode, requests: u64) -> String {
    format!("{}-{requests}", mode.name())
}

/// How long a round lasts.
#[derive(Debug, Clone, Copy)]
enum Extent {
    /// Until each caller has sent so many requests.
    Requests(u64),
    /// Until the process has been admitted so often.
    Admitted(u64),
}

/// Waits for the other processes, lets all callers ask, and prints what was admitted.
async fn round(gate: &Arc<RedisGate>, tenant: &str, extent: Extent) {
    println!("ready");
    // Refunds of the round before go on meanwhile.
    spawn_blocking(|| io::stdin().read_line(&mut String::new())).await.unwrap().unwrap();
    let (start, wall) = both_clocks();
    let admitted = Arc::new(AtomicU64::new(0));
    let callers: JoinSet<_> = (0..CALLERS)
        .map(|number| ask(gate.clone(), tenant.to_owned(), number, extent, admitted.clone()))
        .collect();
    let mut lines = String::new();
    for (user, sent, received, at) in callers.join_all().await.into_iter().flatten() {
        let [sent, received] = [sent, received].map(|moment| micros(wall + (moment - start)));
        writeln!(lines, "admitted {user} {sent} {received} {} {}", at[0], at[1]).unwrap();
    }
    let (end, wall_at_end) = both_clocks();
    if wall_at_end.abs_diff(wall + (end - start)) >= CLOCKS_APART / 2 {
        println!("{CLOCK_WAS_SET}");
    }
    print!("{lines}");
}

/// The only clock that several processes share.
#[allow(clippy::disallowed_methods)] // The judge must not read the time as the limiter does.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The same moment on both clocks: of many readings the one with the least time between them,
/// because a busy machine may stop the process in between.
fn both_clocks() -> (Instant, Duration) {
    let readings = (0..1000).map(|_| (Instant::now(), wall(), Instant::now()));
    let (before, wall, _) = readings.min_by_key(|(before, _, after)| *after - *before).unwrap();
    (before, wall)
}

/// One caller of a round.
async fn ask(
    gate: Arc<RedisGate>,
    tenant: String,
    number: usize,
    extent: Extent,
    admitted: Arc<AtomicU64>,
) -> Vec<(usize, Instant, Instant, [u64; 2])> {
    // 0 0 1 0 2 0 3 0 0 0 ...
    let user = if number.is_multiple_of(2) { number / 2 % USERS } else { 0 };
    let name = user.to_string();
    let request = Request::new().with("tenant", &tenant).with("user", &name);
    let mut own = Vec::new();
    let (start, mut requests) = (Instant::now(), 0);
    loop {
        let is_over = match extent {
            Extent::Requests(most) => requests == most,
            Extent::Admitted(most) => admitted.load(Ordering::Relaxed) >= most,
        };
        if is_over {
            return own;
        }
        assert!(start.elapsed() < HANGS, "{admitted:?} admitted, {:?}", gate.store().stats());
        requests += 1;
        let sent = Instant::now();
        let decisions = gate.check(&request).await;
        let received = Instant::now();
        assert!(
            decisions.iter().all(|one| is_by_store(one.decision().source())),
            "{:?}",
            gate.store().stats()
        );
        if decisions.is_allowed() {
            let at: Vec<_> = decisions.iter().map(|one| one.decision().at().as_micros()).collect();
            own.push((user, sent, received, [at[0], at[1]]));
            admitted.fetch_add(1, Ordering::Relaxed);
        } else {
            // As clients do that come back about when they may.
            sleep(Duration::from_millis(1)).await;
        }
        tokio::task::yield_now().await;
    }
}

/// Lets the processes loose on a store, and judges the replies.
fn judge(url: &str, mode: Mode) {
    let mut clients: Vec<_> = (0..PROCESSES).map(|_| Client::start(url, mode)).collect();
    for client in &mut clients {
        client.until_ready();
    }
    for requests in REQUESTS {
        let (admitted, _) = run(&mut clients);
        let users: Vec<_> = (0..USERS).map(|user| of_user(&admitted, user).len() as u64).collect();
        judge_fixed(url, mode, requests, &users);
    }
    let admitted =
        until("a round in which nobody sets the machine's clock, and leases admit if there are some", || {
            let (admitted, is_steady) = run(&mut clients);
            let leased: u64 = clients.iter().map(|client| client.leased).sum();
            assert!(mode == Mode::Leased || leased == 0, "{leased} admitted from leases, {mode:?}");
            (is_steady && (mode != Mode::Leased || leased > 0)).then_some(admitted)
        });
    judge_windows(mode, &admitted);
}

/// Runs a round in all processes.
fn run(clients: &mut [Client]) -> (Vec<(usize, [Admitted; 2])>, bool) {
    clients.iter_mut().for_each(Client::go);
    let (admitted, steady): (Vec<_>, Vec<_>) = clients.iter_mut().map(Client::admitted).unzip();
    (admitted.concat(), steady.iter().all(|is_steady| *is_steady))
}

/// What was admitted of a user, by its own limit.
fn of_user(admitted: &[(usize, [Admitted; 2])], user: usize) -> Vec<Admitted> {
    admitted.iter().filter(|(of, _)| *of == user).map(|(_, [_, narrow])| *narrow).collect()
}

/// Exactly the limits are admitted: not one request more, and nothing that a denied request charged
/// stays charged.
fn judge_fixed(url: &str, mode: Mode, requests: u64, users: &[u64]) {
    let tenant = tenant(mode, requests);
    let wanted = requests * CALLERS_OF_OTHERS;
    let mut total: u64 = users.iter().sum();
    println!("{mode:?}, {tenant}: {users:?} admitted");
    assert!(total <= WIDE, "{total} instead of {WIDE}, {mode:?}");
    if mode == Mode::Leased {
        // A denial may be due to what other processes have leased and not used.
        assert!(users.iter().all(|admitted| *admitted <= NARROW), "{users:?}");
        return;
    }
    if NARROW + 3 * wanted <= WIDE {
        assert_eq!(users, [NARROW, wanted, wanted, wanted], "{mode:?}");
    } else {
        assert!(users.iter().all(|admitted| *admitted <= NARROW), "{users:?}, {mode:?}");
        // Over several slots a request may be denied for what another one is about to be refunded.
        let is_spread = url.contains("cluster") && mode != Mode::Tagged;
        assert!(is_spread || total == WIDE, "{total} instead of {WIDE}, {mode:?}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // What is left is admitted to anyone who asks alone, and then nobody is.
        let gate = limits(mode, mode.options(url).without_denial_cache(), LONG_WINDOW);
        let names: Vec<_> = (0..USERS).map(|user| user.to_string()).collect();
        let request = |user: usize| Request::new().with("tenant", &tenant).with("user", &names[user]);
        let mut users = users.to_vec();
        let start = Instant::now();
        while total < WIDE {
            assert!(start.elapsed() < HANGS, "{total} instead of {WIDE}: {users:?}, {mode:?}");
            let user = (0..USERS).min_by_key(|user| users[*user]).unwrap();
            if gate.check(&request(user)).await.is_allowed() {
                users[user] += 1;
                total += 1;
            } else {
                sleep(Duration::from_millis(1)).await;
            }
        }
        for (user, admitted) in users.iter().enumerate() {
            let used = async || -> Vec<u64> {
                gate.peek(&request(user)).await.iter().map(|one| one.decision().used()).collect()
            };
            while used().await != [WIDE, *admitted] {
                assert!(start.elapsed() < HANGS, "user {user}: {:?} of {admitted}, {mode:?}", used().await);
                sleep(Duration::from_millis(1)).await;
            }
            let request = request(user);
            let denied = gate.check(&request).await;
            assert!(!denied.is_allowed(), "user {user}, {mode:?}");
            assert!(
                denied.iter().all(|one| is_by_store(one.decision().source())),
                "{:?}",
                gate.store().stats()
            );
        }
    });
}

/// No window contains more than its limit.
fn judge_windows(mode: Mode, admitted: &[(usize, [Admitted; 2])]) {
    assert!(admitted.len() as u64 >= PROCESSES as u64 * ADMITTED_EACH);
    let wide: Vec<_> = admitted.iter().map(|(_, [wide, _])| *wide).collect();
    let narrow = (0..USERS).map(|user| (NARROW, of_user(admitted, user)));
    for (limit, admitted) in [(WIDE, wide)].into_iter().chain(narrow) {
        let (certain, by_server) =
            (most_certain(&admitted, SHORT_WINDOW), most_by_server(&admitted, SHORT_WINDOW));
        println!("{mode:?}: {} admitted, at most {by_server} of {limit} in one window", admitted.len());
        assert!(certain <= limit, "{certain} instead of {limit} in one window, {mode:?}");
        // The time of a decision from a lease is this process's estimate.
        assert!(
            by_server <= limit || mode == Mode::Leased,
            "{by_server} instead of {limit} in one window by the server's clock, {mode:?}"
        );
    }
}

/// The promise of the whole project, with calls that carry many checks.
#[test]
fn three_processes_on_one_server_admit_what_the_limits_say() {
    let server = RedisServer::start();
    judge(&server.url_as_user(), Mode::Batched);
}

/// The same without batches and cached denials.
#[test]
fn three_processes_that_call_for_each_check_admit_what_the_limits_say() {
    let server = RedisServer::start();
    judge(&server.url_as_user(), Mode::Alone);
}

/// Policies of one request may be on different masters, and are exact nevertheless.
#[test]
fn three_processes_on_a_cluster_admit_what_the_limits_say() {
    let cluster = harness::cluster();
    for mode in [Mode::Batched, Mode::Alone] {
        judge(&cluster.url_as_user(), mode);
    }
}

/// With a hash tag, all policies of a request are in one slot.
#[test]
fn three_processes_on_a_cluster_with_a_hash_tag_admit_what_the_limits_say() {
    let cluster = harness::cluster();
    judge(&cluster.url_as_user(), Mode::Tagged);
}

/// With leases most of it is decided in the processes, each for itself.
#[test]
fn three_processes_with_leases_admit_what_the_limits_say() {
    let server = RedisServer::start();
    judge(&server.url_as_user(), Mode::Leased);
}

/// A request takes from the leases of its keys, wherever they are.
#[test]
fn three_processes_with_leases_on_a_cluster_admit_what_the_limits_say() {
    let cluster = harness::cluster();
    judge(&cluster.url_as_user(), Mode::Leased);
}
