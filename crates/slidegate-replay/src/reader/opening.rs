//! Opening logs: finds them, detects their formats, and orders them by their first times.

use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::log::{FailingStream, Log, Source, sample};
use super::{LogOptions, LogReader};
use crate::block::Block;
use crate::format::detect::detect;
use crate::format::field::{SourceSet, TimeRules};
use crate::format::name::ParserOptions;
use crate::input::paths::find;
use crate::input::pool::Pool;
use crate::input::stream::{Compression, LogStream};
use crate::stats::{LogStats, LogSummary};

/// Maximum parsing threads, if there are enough cores. One thread decides as fast as two parse.
const MAX_PARSING_THREADS: usize = 8;

impl LogReader {
    /// Opens logs: files, directories (their files, but not their subdirectories), patterns such as
    /// `logs/access.log*`, and `-` for standard input. A repeated log is read once.
    ///
    /// # Errors
    /// A log cannot be opened or read, it is compressed in another way than gzip and zstd, there
    /// are too many, or its format does not have the fields of the options. The error names the
    /// log.
    pub fn open_all(inputs: &[PathBuf], options: LogOptions) -> io::Result<Self> {
        let mut reader = Self::empty(options);
        reader.inputs = inputs.iter().map(|input| (input.display().to_string(), false)).collect();
        let mut total_bytes = Some(0);
        for found in find(inputs)? {
            let name = found.path.as_ref().map_or_else(|| "-".to_owned(), |path| path.display().to_string());
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
            match &found.path {
                Some(path) if path.metadata().is_ok_and(|metadata| metadata.is_file()) => {
                    let length = path.metadata().map_err(named)?.len();
                    total_bytes = total_bytes.map(|total: u64| total + length);
                    // Examined now and opened again when it is its turn: there may be many.
                    let not_counted = Arc::new(AtomicU64::new(0));
                    let mut stream = LogStream::open(path, &not_counted).map_err(named)?;
                    let sample = sample(&mut stream.bytes).0;
                    reader.add(found.input, &name, &sample, stream.compression, Source::File(path.clone()));
                }
                path => {
                    total_bytes = None;
                    let stream = match path {
                        Some(path) => LogStream::open(path, &reader.bytes_read),
                        None => LogStream::new(io::stdin(), &reader.bytes_read),
                    };
                    reader.add_stream(found.input, &name, stream.map_err(named)?);
                }
            }
        }
        reader.total_bytes = total_bytes;
        reader.start()?;
        Ok(reader)
    }

    /// Reads any stream with the default options, starting with its first bytes.
    ///
    /// # Errors
    /// The stream cannot be read, or it is compressed in another way than gzip and zstd.
    pub fn from_reader(stream: impl Read + Send + 'static) -> io::Result<Self> {
        Self::from_reader_with(stream, LogOptions::default())
    }

    /// Reads any stream, starting with its first bytes.
    ///
    /// # Errors
    /// As for [`from_reader`](Self::from_reader), and if its format does not have the fields of the
    /// options.
    pub fn from_reader_with(stream: impl Read + Send + 'static, options: LogOptions) -> io::Result<Self> {
        let mut reader = Self::empty(options);
        reader.inputs = vec![("-".to_owned(), false)];
        let stream = LogStream::new(stream, &reader.bytes_read)?;
        reader.add_stream(0, "-", stream);
        reader.start()?;
        Ok(reader)
    }

    fn empty(options: LogOptions) -> Self {
        let parser_options = ParserOptions {
            fields: options.fields.clone(),
            cost_field: options.cost_field.clone(),
            client: options.client.clone(),
            needs_time: true,
            time: TimeRules {
                zone: options.zone.clone(),
                derive_start: options.derive_start,
                slack_us: u64::try_from(options.slack.as_micros()).unwrap_or(u64::MAX),
            },
        };
        Self {
            options,
            parser_options,
            logs: Vec::new(),
            next_log: 0,
            open: Vec::new(),
            heads: BinaryHeap::new(),
            current: None,
            pool: None,
            inputs: Vec::new(),
            sources: SourceSet::default(),
            newest_us: 0,
            failures: VecDeque::new(),
            is_finished: false,
            bytes_read: Arc::default(),
            total_bytes: None,
            stats: LogStats::default(),
        }
    }

    fn add_stream(&mut self, input: usize, name: &str, mut stream: LogStream) {
        let (sample, failure) = sample(&mut stream.bytes);
        let begun = io::Cursor::new(sample.clone());
        // Reading again after a failure might hang or succeed.
        let bytes: Box<dyn Read + Send> = match failure {
            Some(error) => Box::new(begun.chain(FailingStream(Some(error)))),
            None => Box::new(begun.chain(stream.bytes)),
        };
        let source = Source::Stream(Some((bytes, stream.compression)));
        self.add(input, name, &sample, stream.compression, source);
    }

    fn add(&mut self, input: usize, name: &str, sample: &[u8], compression: Compression, source: Source) {
        let given = self.options.format.as_ref().map(|format| &format.0);
        let detected = detect(sample, given, &self.parser_options);
        let mut format = detected.format.name().to_owned();
        if let Some(wrapper) = detected.wrapper {
            format = format!("{format} in {}", wrapper.name());
        }
        if compression != Compression::Plain {
            format = format!("{format}, {}", compression.name());
        }
        self.stats.logs.push(LogSummary {
            name: name.into(),
            format,
            is_detected: given.is_none(),
            is_time_ambiguous: false,
            lines: 0,
            entries: 0,
            malformed: 0,
            missing_columns: Vec::new(),
            first_us: detected.first_us,
        });
        let first_us = detected.first_us.unwrap_or(0);
        self.logs.push(Log { source, input, detected, first_us, is_start_known: false });
    }

    /// Orders the logs, checks their formats, and starts the threads.
    fn start(&mut self) -> io::Result<()> {
        for at in 0..self.logs.len() {
            if let Some(opening_us) = self.opening_us(&self.logs[at]) {
                let log = &mut self.logs[at];
                log.first_us += opening_us;
                log.is_start_known = true;
            }
        }
        let mut order: Vec<usize> = (0..self.logs.len()).collect();
        let names = &self.stats.logs;
        order.sort_by_key(|log| (self.logs[*log].first_us, &names[*log].name));
        let mut logs: Vec<Option<Log>> = std::mem::take(&mut self.logs).into_iter().map(Some).collect();
        let summaries = std::mem::take(&mut self.stats.logs);
        for at in order {
            self.logs.extend(logs[at].take());
            self.stats.logs.push(summaries[at].clone());
        }
        for (log, summary) in self.logs.iter().zip(&mut self.stats.logs) {
            let parser = log.detected.format.parser(&self.parser_options);
            let parser = parser.map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {error}", summary.name))
            })?;
            summary.is_time_ambiguous = parser.is_time_ambiguous();
        }
        self.pool = match self.options.threads.saturating_sub(1) {
            0 => None,
            threads => Pool::start(threads.min(MAX_PARSING_THREADS)),
        };
        Ok(())
    }

    /// How much later than assumed a log begins, as far as its lines tell. They are read ahead if the log
    /// begins at a repeated clock time. A pipe cannot be read twice.
    fn opening_us(&self, log: &Log) -> Option<u64> {
        let Source::File(path) = &log.source else { return None };
        if !log.detected.is_repeated {
            return None;
        }
        let stream = LogStream::open(path, &Arc::default()).ok()?;
        let mut reader = self.block_reader(log, stream).ok()?;
        let mut spare = Block::default();
        loop {
            let read = reader.next_block(spare);
            if !reader.fold().is_opening() || read.end.is_some() {
                return reader.fold().opening_us();
            }
            spare = read.block;
        }
    }
}
