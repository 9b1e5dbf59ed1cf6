//! Arguments of commands that read access logs: format, times, fields and costs.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::TimeZone;
use slidegate_http::client_addr::ClientAddr;
use slidegate_replay::{Entry, LogFormat, LogOptions, LogReader};

use super::failure::Failure;
use super::values::{number, pair};

/// Entries between two updates of the progress bar.
const PROGRESS_EVERY: usize = 4096;

/// How access logs are read.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access logs")]
pub(super) struct LogArgs {
    /// Format of the logs: `auto`, `common`, `combined`, `apache:FORMAT`, `nginx:FORMAT`,
    /// `nginx:@FILE`, `ingress-nginx`, `nginx-proxy-manager`, `caddy`, `traefik`, `traefik-json`,
    /// `envoy`, `envoy:FORMAT`, `envoy-json`, `istio`, `haproxy`, `gcp`, `json` or
    /// `csv`. See docs/replay.md
    #[arg(long = "log-format", value_name = "FORMAT", default_value = "auto", value_parser = format)]
    log_format: String,
    /// Field or attribute, and the column, variable or path of the log it is read from, such as
    /// `ip=request.client`; may be repeated
    #[arg(long = "field", value_name = "NAME=SOURCE", value_parser = pair)]
    fields: Vec<(String, String)>,
    /// Column, variable or path with the cost of a request, or `bytes` for the length of the
    /// response; fractions are rounded up [default: every request costs 1]
    #[arg(long, value_name = "SOURCE")]
    cost_field: Option<String>,
    /// Time zone of times that are logged without one, such as `Europe/Berlin` or `+02:00`
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = zone)]
    time_zone: TimeZone,
    /// Decide requests at the logged time, even where the log has their end and their duration
    #[arg(long)]
    logged_time: bool,
    /// Maximum disorder of lines, in seconds: lines are sorted within it
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = number::<u64>)]
    slack: u64,
    /// Accept what the log cannot judge: policies whose attributes never occur in it, fields that no
    /// line has and, with --fail-above, changed policies that applied to no request
    #[arg(long)]
    pub(super) allow_empty: bool,
    /// Stop at the first line that cannot be read or comes too late
    #[arg(long)]
    strict: bool,
    /// Threads that read and decide [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
}

impl LogArgs {
    /// Opens logs: files, directories, patterns, and `-` for standard input. Reader errors name the log.
    /// `client`: how the service derives the client.
    pub(super) fn open(&self, inputs: &[PathBuf], client: ClientAddr) -> Result<LogReader, Failure> {
        let format = match self.log_format.as_str() {
            "auto" => None,
            name => Some(LogFormat::parse(name)?),
        };
        let options = LogOptions {
            format,
            fields: self.fields.clone(),
            cost_field: self.cost_field.clone(),
            client,
            zone: self.time_zone.clone(),
            derive_start: !self.logged_time,
            slack: Duration::from_secs(self.slack),
            strict: self.strict,
            threads: self.threads(),
        };
        Ok(LogReader::open_all(inputs, options)?)
    }

    /// Maximum threads for reading and deciding.
    pub(super) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| LogOptions::default().threads)
    }
}

/// Passes all entries to `take` until it returns false, with a progress bar on a terminal.
pub(super) fn read_all(log: &mut LogReader, mut take: impl FnMut(&Entry<'_>) -> bool) -> Result<(), Failure> {
    let (bar, template) = match log.progress().total_bytes {
        Some(total) => (ProgressBar::new(total), "{bar:40} {percent}% {bytes}/{total_bytes}, {eta} to go"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} read, {elapsed}"),
    };
    let bar = bar.with_style(ProgressStyle::with_template(template)?);
    let mut since_progress = 0;
    let read = loop {
        if since_progress >= PROGRESS_EVERY {
            bar.set_position(log.progress().bytes_read);
            since_progress = 0;
        }
        match log.next_entry() {
            Ok(Some(entry)) => {
                since_progress += 1;
                if !take(&entry) {
                    break Ok(());
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    bar.finish_and_clear();
    read
}

fn format(text: &str) -> Result<String, String> {
    if text != "auto" {
        LogFormat::parse(text)?;
    }
    Ok(text.to_owned())
}

fn zone(text: &str) -> Result<TimeZone, String> {
    let zone = if text == "Z" { Ok(TimeZone::UTC) } else { DateTimeParser::new().parse_time_zone(text) };
    zone.map_err(|_| {
        "must be `UTC`, an offset such as `+02:00`, or a name such as `Europe/Berlin` (from the system's zones, \
         package tzdata)"
            .to_owned()
    })
}

fn threads(text: &str) -> Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=256).contains(threads));
    threads.ok_or_else(|| "must be a whole number from 1 to 256".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log read in another time zone than it was written in counts in other windows.
    #[test]
    fn zones_are_names_or_offsets() {
        let hour = |text: &str| {
            let zone = zone(text).unwrap();
            zone.to_offset(jiff::Timestamp::UNIX_EPOCH).seconds()
        };
        assert_eq!(["UTC", "Z", "+02:00", "-05:30", "+02"].map(hour), [0, 0, 7200, -19_800, 7200]);
        assert!(zone("Mars").is_err() && zone("+99:00").is_err() && zone("").is_err());
    }
}
