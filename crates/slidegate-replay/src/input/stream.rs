//! A log as a stream of plain bytes: opens, counts and decompresses it.
//!
//! Compression is detected by the first bytes, never by the file name.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use xxhash_rust::xxh64::Xxh64;

/// Bytes per read of a compressed file.
const BUFFER_BYTES: usize = 64 * 1024;
/// Maximum window of zstd data: what `zstd --long` needs, and no more memory.
const MAX_ZSTD_WINDOW_BYTES: u64 = 128 * 1024 * 1024;

/// First bytes of gzip data: the magic number and the only compression method.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b, 0x08];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Other compressions, to report them: first bytes, and the program that decompresses them.
const FOREIGN_MAGICS: [(&[u8], &str); 2] = [(&[0xfd, b'7', b'z', b'X', b'Z'], "xzcat"), (b"BZh", "bzcat")];
const LONGEST_MAGIC: u64 = 5;

/// How a log is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Plain,
    Gzip,
    Zstd,
}

impl Compression {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// A log, decompressed.
pub(crate) struct LogStream {
    pub(crate) bytes: Box<dyn Read + Send>,
    pub(crate) compression: Compression,
}

impl LogStream {
    /// Opens a file. Bytes read, before decompression, are added to `bytes_read`.
    ///
    /// # Errors
    /// The file cannot be opened or read, or is compressed in another way than gzip and zstd.
    pub(crate) fn open(path: &Path, bytes_read: &Arc<AtomicU64>) -> io::Result<Self> {
        Self::new(File::open(path)?, bytes_read)
    }

    /// Reads any stream, starting with its first bytes.
    ///
    /// # Errors
    /// The stream cannot be read, or is compressed in another way than gzip and zstd.
    pub(crate) fn new(stream: impl Read + Send + 'static, bytes_read: &Arc<AtomicU64>) -> io::Result<Self> {
        let mut counted = CountedStream { stream, bytes_read: Arc::clone(bytes_read) };
        let mut magic = Vec::new();
        counted.by_ref().take(LONGEST_MAGIC).read_to_end(&mut magic)?;
        if let Some((_, program)) = FOREIGN_MAGICS.iter().find(|(foreign, _)| magic.starts_with(foreign)) {
            let way_out = format!(
                "log is compressed, and not with gzip or zstd; pipe it in: `{program} LOG | slidegate replay -`"
            );
            return Err(io::Error::new(ErrorKind::InvalidData, way_out));
        }
        let (is_gzip, is_zstd) = (magic.starts_with(GZIP_MAGIC), magic.starts_with(ZSTD_MAGIC));
        let whole = Cursor::new(magic).chain(counted);
        let buffered = |whole| BufReader::with_capacity(BUFFER_BYTES, whole);
        Ok(if is_gzip {
            let bytes = Box::new(MultiGzDecoder::new(buffered(whole)));
            Self { bytes, compression: Compression::Gzip }
        } else if is_zstd {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(MAX_ZSTD_WINDOW_BYTES);
            let source = buffered(whole);
            let bytes = Box::new(ZstdStream {
                source,
                decoder,
                is_in_frame: false,
                checksum: Xxh64::new(0),
                failure: None,
            });
            Self { bytes, compression: Compression::Zstd }
        } else {
            Self { bytes: Box::new(whole), compression: Compression::Plain }
        })
    }
}

/// Decodes frame after frame, like `zstdcat`.
struct ZstdStream<R> {
    source: R,
    decoder: FrameDecoder,
    is_in_frame: bool,
    /// Checksum of the frame's data read so far.
    checksum: Xxh64,
    /// The error that ended the frame early; returned after the data decoded before it.
    failure: Option<io::Error>,
}

/// An empty block that is the last of its frame, and space for a checksum.
const LAST_BLOCK: &[u8] = &[1, 0, 0, 0, 0, 0, 0];

impl<R: BufRead> ZstdStream<R> {
    /// Decodes the next block. The decoder withholds the last window of an unfinished frame, which for a
    /// small file is everything. So a frame that cannot continue is ended here, and its data is returned.
    fn decode_block(&mut self) -> io::Result<()> {
        let one = BlockDecodingStrategy::UptoBlocks(1);
        if self.decoder.decode_blocks(&mut self.source, one).is_ok() {
            return Ok(());
        }
        self.failure = Some(if self.source.fill_buf()?.is_empty() {
            ErrorKind::UnexpectedEof.into()
        } else {
            io::Error::new(ErrorKind::InvalidData, "a block cannot be decoded")
        });
        let last = BlockDecodingStrategy::UptoBlocks(1);
        self.decoder.decode_blocks(LAST_BLOCK, last).map(|_| ()).map_err(|_| self.take_failure())
    }

    fn take_failure(&mut self) -> io::Error {
        self.failure.take().unwrap_or_else(|| ErrorKind::InvalidData.into())
    }
}

impl<R: BufRead> Read for ZstdStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_in_frame {
                if self.source.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                match self.decoder.reset(&mut self.source) {
                    Ok(()) => {
                        self.is_in_frame = true;
                        self.checksum.reset(0);
                    }
                    Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                        length,
                        ..
                    })) => {
                        io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
                        continue;
                    }
                    Err(FrameDecoderError::WindowSizeTooBig { .. }) => {
                        return Err(io::Error::new(
                            ErrorKind::InvalidData,
                            "its window is larger than 128 MiB",
                        ));
                    }
                    Err(_) => return Err(io::Error::new(ErrorKind::InvalidData, "no frame begins here")),
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decode_block()?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 {
                self.checksum.update(&buffer[..read]);
                return Ok(read);
            }
            self.is_in_frame = false;
            if self.failure.is_some() {
                return Err(self.take_failure());
            }
            // A frame stores the lower half of the hash.
            let expected = self.decoder.get_checksum_from_data();
            if expected
                .is_some_and(|expected| expected.to_le_bytes() != self.checksum.digest().to_le_bytes()[..4])
            {
                return Err(io::Error::new(ErrorKind::InvalidData, "the checksum of a frame does not match"));
            }
        }
    }
}

/// Counts bytes read, for progress.
struct CountedStream<R> {
    stream: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountedStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
