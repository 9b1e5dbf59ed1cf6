//! How wrong is a rate limiter? See the README.

mod drivers;
mod judge;
mod part;
mod record;
mod report;
mod schedule;
mod servers;
mod suite;
mod target;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use record::{Record, Row, Verdict};
use schedule::Watch;
use suite::Torture;
use target::Target;

/// Why something did not work, in a line for the user.
type Failed = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "\
usage: torture TARGET... [options]      judges targets of targets/*.toml
       torture --all [options]          judges all of them
       torture --list                   names them
       torture --page RECORD --template FILE [--charts FILE]
                                        prints the page of a recorded run

  --suite quick|full  one instance for seconds, or also faults, floods and several instances (full)
  --seed S            of the schedules (1)
  --folder DIR        the folder of targets/ and of what their commands start (this tool's own)
  --json FILE         writes what was found
  --charts FILE       draws what was admitted over time (SVG)

Ends with 1 if a target admitted more than it promises, denied what had room or promised a wait
that was too short; with 3 if something could not be judged or did not work.";

#[derive(Debug, Default)]
struct Options {
    targets: Vec<String>,
    is_all: bool,
    is_list: bool,
    is_quick: bool,
    seed: Option<u64>,
    folder: Option<PathBuf>,
    json: Option<PathBuf>,
    charts: Option<PathBuf>,
    page: Option<PathBuf>,
    template: Option<PathBuf>,
}

fn options() -> Result<Options, Failed> {
    use lexopt::prelude::*;
    let mut options = Options::default();
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            Long("all") => options.is_all = true,
            Long("list") => options.is_list = true,
            Long("suite") => {
                options.is_quick = match parser.value()?.string()?.as_str() {
                    "quick" => true,
                    "full" => false,
                    other => return Err(format!("--suite {other:?}; use quick or full").into()),
                }
            }
            Long("seed") => options.seed = Some(parser.value()?.parse()?),
            Long("folder") => options.folder = Some(parser.value()?.into()),
            Long("json") => options.json = Some(parser.value()?.into()),
            Long("charts") => options.charts = Some(parser.value()?.into()),
            Long("page") => options.page = Some(parser.value()?.into()),
            Long("template") => options.template = Some(parser.value()?.into()),
            Value(name) => options.targets.push(name.string()?),
            _ => return Err(argument.unexpected().into()),
        }
    }
    Ok(options)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let outcome = match options() {
        Ok(options) => run(&options).await,
        Err(error) => Err(format!("{error}\n\n{USAGE}").into()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(2)
    })
}

async fn run(options: &Options) -> Result<ExitCode, Failed> {
    if let Some(record) = &options.page {
        return page(options, record);
    }
    let folder = options.folder.clone().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).to_owned());
    let folder = folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()))?;
    let all = target::all(&folder.join("targets"))?;
    if options.is_list {
        for target in &all {
            println!("{:30} {}", target.name, target.configuration);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = chosen(options, &all)?;
    let suite = if options.is_quick { "quick" } else { "full" };
    let mut record = Record {
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        machine: machine(),
        seed: options.seed.unwrap_or(1),
        suite: suite.to_owned(),
        rows: Vec::new(),
    };
    let watch = Watch::new();
    let mut not_started = Vec::new();
    for target in chosen {
        eprintln!("{} ...", target.name);
        let kept = tempfile::tempdir()?;
        let torture = Torture { target, folder: &folder, seed: record.seed, watch: &watch, kept };
        match torture.run(options.is_quick).await {
            Ok(row) => record.rows.push(row),
            Err(error) => {
                eprintln!("not started: {error}");
                not_started.push(target.name.clone());
            }
        }
    }
    if record.rows.is_empty() {
        return Err(format!("nothing was judged; these did not start: {}", not_started.join(", ")).into());
    }
    print!("{}", report::tables(&record));
    if let Some(path) = &options.json {
        std::fs::write(path, record.text()?)?;
    }
    if let Some(path) = &options.charts {
        std::fs::write(path, report::charts(&record.rows)?)?;
    }
    if !not_started.is_empty() {
        return Err(format!("these did not start: {}", not_started.join(", ")).into());
    }
    let (is_wrong, is_open) = (record.rows.iter().any(is_wrong), record.rows.iter().any(is_open));
    Ok(ExitCode::from(if is_wrong {
        1
    } else if is_open {
        3
    } else {
        0
    }))
}

fn chosen<'a>(options: &Options, all: &'a [Target]) -> Result<Vec<&'a Target>, Failed> {
    if options.is_all {
        return Ok(all.iter().collect());
    }
    if options.targets.is_empty() {
        return Err(format!("name a target, or --all\n\n{USAGE}").into());
    }
    let named = options.targets.iter().map(|name| {
        let found = all.iter().find(|target| target.name == *name);
        found.ok_or_else(|| format!("no target {name:?} in targets/*.toml; --list names them").into())
    });
    named.collect()
}

/// Whether it breaks its promise in use: faults may lose what is in memory, as the table says.
fn is_wrong(row: &Row) -> bool {
    row.parts.iter().any(|part| match &part.verdict {
        Verdict::Judged(figures) if !part.name.is_fault() => {
            figures.is_over(row.target.promise).unwrap_or(false)
                || figures.wrong_denials > 0
                || figures.too_short_ms.is_some_and(|ms| ms >= 1.0)
        }
        _ => false,
    })
}

fn is_open(row: &Row) -> bool {
    row.parts.iter().any(|part| matches!(part.verdict, Verdict::NotJudged(_) | Verdict::Failed(_)))
}

fn page(options: &Options, record: &Path) -> Result<ExitCode, Failed> {
    let template =
        options.template.as_ref().ok_or("--page needs --template FILE, the text around its tables")?;
    let record: Record = serde_json::from_str(&std::fs::read_to_string(record)?)?;
    if let Some(path) = &options.charts {
        std::fs::write(path, report::charts(&record.rows)?)?;
    }
    print!("{}", report::page(&std::fs::read_to_string(template)?, &record));
    Ok(ExitCode::SUCCESS)
}

/// Processor, number of cores and kernel.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo");
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}, {cores} cores, Linux {}",
        model.unwrap_or("unknown processor"),
        read("/proc/sys/kernel/osrelease").trim()
    )
}
