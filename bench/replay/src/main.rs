//! Lines per second of a replay: counting lines, parsing, and parsing with three policies, on one
//! thread and on two. Writes the log that it reads, unless it is given one. With a text as well, it
//! measures only the cases whose names contain it.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml -p slidegate-replay-bench [LOG [CASE]]`

use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cpu_time::ProcessTime;
use slidegate::{Policy, PolicySet, Quota};
use slidegate_replay::{LogOptions, LogReader, Options, PlainWording, Plan, Replay, Wording};

const LINES: u64 = 1_000_000;
const ROUNDS: usize = 5;

/// Three policies each: with some 50,000 keys, and with most requests a key of their own, which is
/// the slowest case: every key is cold.
const POLICIES: [(&str, [&[&str]; 3]); 2] = [
    ("ip, ip and method, user agent", [&["ip"], &["ip", "method"], &["user_agent"]]),
    ("ip, ip and path, user agent", [&["ip"], &["ip", "path"], &["user_agent"]]),
];

type Outcome = Result<u64, Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args().nth(1).map(PathBuf::from);
    let path = match &given {
        Some(path) => path.clone(),
        None => written()?,
    };
    let megabytes = path.metadata()?.len() / 1_000_000;
    println!("{}: {megabytes} MB, best of {ROUNDS} rounds\n", path.display());
    println!("| | lines/s | per CPU second | seconds |\n|---|--:|--:|--:|");
    measure("count line ends", || count(&path))?;
    for threads in [1, 2] {
        measure(&format!("parse, {threads} thread(s)"), || parse(&path, threads))?;
        for (name, scopes) in POLICIES {
            measure(&format!("parse, decide by {name}, {threads} thread(s)"), || {
                decide(&path, scopes, threads)
            })?;
        }
    }
    if given.is_none() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Prints the best of several rounds, in wall-clock time and in CPU time.
fn measure(name: &str, run: impl Fn() -> Outcome) -> Result<(), Box<dyn Error>> {
    let (mut wall, mut cpu, mut lines) = (f64::MAX, f64::MAX, 0);
    if !name.contains(&std::env::args().nth(2).unwrap_or_default()) {
        return Ok(());
    }
    for _ in 0..ROUNDS {
        let (began, used) = (Instant::now(), ProcessTime::now());
        lines = run()?;
        wall = wall.min(began.elapsed().as_secs_f64());
        cpu = cpu.min(used.elapsed().as_secs_f64());
    }
    let millions = |seconds: f64| lines as f64 / seconds / 1e6;
    println!("| {name} | {:.2} M | {:.2} M | {wall:.3} |", millions(wall), millions(cpu));
    Ok(())
}

fn count(path: &Path) -> Outcome {
    let mut file = File::open(path)?;
    let mut block = vec![0; 1024 * 1024];
    let mut lines = 0;
    loop {
        let length = file.read(&mut block)?;
        if length == 0 {
            return Ok(lines);
        }
        lines += memchr::memchr_iter(b'\n', &block[..length]).count() as u64;
    }
}

fn reader(path: &Path, threads: usize) -> std::io::Result<LogReader> {
    LogReader::open_all(&[path.to_owned()], LogOptions { threads, ..LogOptions::default() })
}

fn parse(path: &Path, threads: usize) -> Outcome {
    let mut reader = reader(path, threads)?;
    while reader.next_entry()?.is_some() {}
    Ok(reader.stats().lines)
}

fn decide(path: &Path, scopes: [&[&str]; 3], threads: usize) -> Outcome {
    let mut reader = reader(path, threads)?;
    let policies = scopes.iter().map(|scope| {
        let policy = Policy::new(scope.join("-"), Quota::per_minute(100))?;
        Ok(policy.with_scope(scope.iter().copied()))
    });
    let policies = PolicySet::new(policies.collect::<Result<Vec<_>, slidegate::Error>>()?)?;
    let wording: Arc<dyn Wording> = Arc::new(PlainWording);
    let options = Options { threads: threads - 1, ..Options::default() };
    let mut replay = Replay::new(Plan::of(policies, options), &wording)?;
    while let Some(entry) = reader.next_entry()? {
        replay.push(&entry)?;
    }
    replay.finish(reader.stats())?;
    Ok(reader.stats().lines)
}

/// A day of a shop in the combined format: as many clients as a busy site has, most of them seldom.
fn written() -> Result<PathBuf, Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("slidegate-replay-bench-{}.log", std::process::id()));
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let agents = [
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
        "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
        "ExampleBot/2.1 (+http://crawler.example/bot.html)",
        "curl/8.5.0",
    ];
    let mut file = std::io::BufWriter::new(File::create(&path)?);
    let mut line = String::new();
    for number in 0..LINES {
        // A hundredth of the clients make half of the requests.
        let client = if random(2) == 0 { random(500) } else { random(50_000) };
        let second = number * 86_400 / LINES;
        let most = random(2000) + 1;
        line.clear();
        writeln!(
            line,
            "10.{}.{}.{} - - [20/Nov/2026:{:02}:{:02}:{:02} +0000] \"GET /items/{}/reviews?page={} HTTP/1.1\" {} {} \
             \"https://shop.example/items/{}\" \"{}\"",
            client >> 16,
            client >> 8 & 255,
            client & 255,
            second / 3600,
            second / 60 % 60,
            second % 60,
            random(most),
            random(5),
            [200, 304, 404][usize::try_from(random(3))?],
            random(100_000),
            random(2000),
            agents[usize::try_from(client % 4)?],
        )?;
        file.write_all(line.as_bytes())?;
    }
    file.flush()?;
    Ok(path)
}
