//! A log before it is opened, and the sample for format detection.

use std::io::{self, Read};
use std::path::PathBuf;

use crate::format::detect::Detected;
use crate::input::stream::Compression;

/// Bytes of a log used to detect its format.
const SAMPLE_BYTES: usize = 64 * 1024;

/// A log, before and after it is open.
pub(crate) struct Log {
    pub(crate) source: Source,
    pub(crate) input: usize,
    pub(crate) detected: Detected,
    pub(crate) first_us: u64,
    /// Whether `first_us` is known to be right although the clock repeated that time.
    pub(crate) is_start_known: bool,
}

pub(crate) enum Source {
    File(PathBuf),
    /// Standard input or a given stream, and its compression.
    Stream(Option<(Box<dyn Read + Send>, Compression)>),
}

/// The beginning of a log, and why it could not be read further.
pub(crate) fn sample(stream: &mut (impl Read + ?Sized)) -> (Vec<u8>, Option<io::Error>) {
    let mut sample = vec![0; SAMPLE_BYTES];
    let mut length = 0;
    while length < sample.len() {
        match stream.read(&mut sample[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                sample.truncate(length);
                return (sample, Some(error));
            }
        }
    }
    sample.truncate(length);
    (sample, None)
}

/// A stream that has failed.
pub(crate) struct FailingStream(pub(crate) Option<io::Error>);

impl Read for FailingStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}
