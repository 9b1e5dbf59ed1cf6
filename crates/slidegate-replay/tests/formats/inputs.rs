//! Which logs are read, in which order, and what is said of those that cannot be.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use slidegate_replay::{LogFormat, LogOptions, LogReader};

use crate::visit::{FIXTURE, FIXTURE_FORMAT, visits};
use crate::{decisions, writer};

/// A folder that is removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slidegate-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// A line of a client at this second of 10:00 to 10:59.
fn line(client: &str, second: u64) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!("{client} - - [20/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 100\n")
}

fn lines(client: &str, seconds: impl IntoIterator<Item = u64>) -> String {
    seconds.into_iter().map(|second| line(client, second)).collect()
}

fn open(inputs: &[&Path], options: LogOptions) -> std::io::Result<LogReader> {
    LogReader::open_all(&inputs.iter().map(|path| path.to_path_buf()).collect::<Vec<_>>(), options)
}

/// The clients in the order they come out, and the errors after them.
fn clients(reader: &mut LogReader) -> (Vec<String>, Vec<String>) {
    let (mut clients, mut errors) = (Vec::new(), Vec::new());
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => clients.push(String::from_utf8_lossy(entry.client).into_owned()),
            Ok(None) => return (clients, errors),
            Err(error) => errors.push(error.to_string()),
        }
    }
}

/// Who replays a week gives the shell's order of rotated files, which is not that of time.
#[test]
fn rotated_logs_come_out_in_order_of_time_whatever_the_order_given() {
    let folder = Folder::new("rotated");
    let current = folder.file("access.log", lines("c", 1200..1210));
    let first = folder.file("access.log.1", lines("b", 600..610));
    let second = folder.file("access.log.2.gz", gzip(lines("a", 0..10).as_bytes()));
    let expected: Vec<String> =
        ["a", "b", "c"].iter().flat_map(|client| vec![(*client).to_owned(); 10]).collect();
    for order in [[&current, &first, &second], [&second, &current, &first]] {
        let order: Vec<&Path> = order.iter().map(|path| path.as_path()).collect();
        let mut reader = open(&order, LogOptions::default()).unwrap();
        assert_eq!(clients(&mut reader), (expected.clone(), vec![]));
        assert_eq!(reader.stats().late, 0);
        let progress = reader.progress();
        assert_eq!(Some(progress.bytes_read), progress.total_bytes);
    }
}

/// Two servers behind a load balancer have one traffic.
#[test]
fn logs_of_the_same_time_are_merged_whatever_the_order_given() {
    let folder = Folder::new("merged");
    let one = folder.file("one.log", lines("a", [0, 2, 2, 5]));
    let other = folder.file("other.log", lines("b", [1, 2, 4, 5]));
    let mut reader = open(&[&one, &other], LogOptions::default()).unwrap();
    assert_eq!(clients(&mut reader).0, ["a", "b", "a", "a", "b", "b", "a", "b"]);
    let mut reader = open(&[&other, &one], LogOptions::default()).unwrap();
    assert_eq!(clients(&mut reader).0, ["a", "b", "a", "a", "b", "b", "a", "b"]);
}

/// A log counted twice would deny half of its traffic.
#[test]
fn a_log_that_is_given_twice_is_read_once() {
    let folder = Folder::new("twice");
    let log = folder.file("access.log", lines("a", 0..3));
    folder.file("access.log.1", lines("b", 0..2));
    folder.file(".hidden", "no log\n");
    folder.file("old/access.log.2", lines("c", 0..5));
    let pattern = folder.path("access.log*");
    let mut reader =
        open(&[&log, &pattern, &folder.0, &folder.0.join("./access.log")], LogOptions::default()).unwrap();
    let (clients, errors) = clients(&mut reader);
    assert_eq!((clients.len(), errors), (5, vec![]), "the directory in the directory is not read");
}

/// A log in a wrong format that counts as "no denials" would let a bad limit through.
#[test]
fn an_input_without_a_readable_line_is_an_error_that_names_it() {
    let folder = Folder::new("unreadable");
    let good = folder.file("good.log", lines("a", 0..3));
    let wrong = folder.file("wrong.log", "hello\nworld\n");
    let empty = folder.file("empty.log", "");
    let mut reader = open(&[&good, &wrong, &empty], LogOptions::default()).unwrap();
    let (read, errors) = clients(&mut reader);
    assert_eq!(read.len(), 3);
    let [unknown, nothing] = &errors[..] else { panic!("{errors:?}") };
    let expected = format!(
        "{}: no request in 2 lines: its format is not known; name it with `--log-format`, one of `common`, ",
        wrong.display()
    );
    assert!(unknown.starts_with(&expected), "{unknown}");
    let excerpt = format!("\n  {} line 2: no identity (or `-`) after the client: world", wrong.display());
    assert!(unknown.ends_with(&excerpt), "{unknown}");
    assert_eq!(*nothing, format!("{}: the log is empty: nothing to replay", empty.display()));

    // In a directory, other files are counted and shown.
    let mut reader = open(&[&folder.0], LogOptions::default()).unwrap();
    assert_eq!(clients(&mut reader), (vec!["a".to_owned(); 3], vec![]));
    let notes = reader.stats().notes().join("\n");
    assert!(notes.contains("2 logs without a readable line: "), "{notes}");

    let options = LogOptions { format: Some(LogFormat::parse("caddy").unwrap()), ..LogOptions::default() };
    let (_, errors) = clients(&mut open(&[&good], options).unwrap());
    let expected = format!(
        "{}: no request in 3 lines: expected lines of the format `caddy`\n  line 1: not one",
        good.display()
    );
    assert!(errors[0].starts_with(&expected), "{errors:?}");
}

/// The message must say which of many inputs is mistyped.
#[test]
fn inputs_that_do_not_exist_are_errors_that_name_them() {
    let folder = Folder::new("missing");
    fs::create_dir(folder.path("empty")).unwrap();
    for (path, reason) in [
        ("nowhere.log", "No such file or directory (os error 2)"),
        ("*.log", "no file matches the pattern"),
        ("[x", "invalid pattern: Pattern syntax error near position 0: invalid range pattern"),
        ("empty", "the directory has no files"),
    ] {
        let path = if path == "[x" { PathBuf::from(path) } else { folder.path(path) };
        let error = open(&[&path], LogOptions::default()).err().unwrap();
        assert_eq!(error.to_string(), format!("{}: {reason}", path.display()));
    }
}

/// In a pipeline, a line that was not counted must stop the deploy.
#[test]
fn strict_stops_at_the_first_line_that_is_malformed_or_late() {
    let strict = || LogOptions { strict: true, ..LogOptions::default() };
    let read = |text: String, options| {
        clients(&mut LogReader::from_reader_with(Cursor::new(text.into_bytes()), options).unwrap())
    };
    let malformed = lines("a", 0..3) + "hello\n" + &lines("a", 3..5);
    let expected = "-: line 4: no identity (or `-`) after the client: hello";
    assert_eq!(read(malformed.clone(), strict()).1, [expected]);
    assert_eq!(read(malformed, LogOptions::default()), (vec!["a".to_owned(); 5], vec![]));
    let late = lines("a", [0, 500, 700, 100]);
    let expected = "-: line 4: 400 s before a line already decided";
    assert_eq!(read(late.clone(), strict()).1, [expected]);
    assert_eq!(read(late.clone(), LogOptions { slack: Duration::from_secs(3600), ..strict() }).1, [""; 0]);
    let mut reader = LogReader::from_reader(Cursor::new(late.into_bytes())).unwrap();
    assert_eq!(clients(&mut reader).0.len(), 4);
    assert_eq!((reader.stats().late, reader.stats().jumps[0].to_string().as_str()), (1, &expected[3..]));
}

/// A clock that jumped, or a missing log, explains denials that nobody would have seen.
#[test]
fn a_gap_of_more_than_a_day_is_counted_with_its_line() {
    let log = lines("a", 0..3)
        + &line("b", 0).replace("20/Nov", "22/Nov")
        + &line("c", 5).replace("20/Nov", "22/Nov");
    let mut reader = LogReader::from_reader(Cursor::new(log.into_bytes())).unwrap();
    assert_eq!(clients(&mut reader).0, ["a", "a", "a", "b", "c"]);
    let stats = reader.stats();
    assert_eq!(
        (stats.gaps, stats.jumps[0].to_string()),
        (1, "line 4: 172798 s after the entry before".to_owned())
    );
}

/// More cores must only be faster.
#[test]
fn any_number_of_threads_gives_the_same_entries_in_the_same_order() {
    let folder = Folder::new("threads");
    let written = writer::all();
    // Every format at the same time.
    let mut paths = Vec::new();
    for (number, log) in written.iter().filter(|log| log.given.is_none() && log.fields.is_empty()).enumerate()
    {
        paths.push(folder.file(&format!("{number}.log"), &log.text));
    }
    let read = |threads| {
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let mut reader = open(&paths, LogOptions { threads, ..LogOptions::default() }).unwrap();
        let decided = decisions(&mut reader);
        (decided, reader.stats().clone())
    };
    let alone = read(1);
    assert!(alone.0.len() > 9_000);
    for threads in [2, 5] {
        assert!(read(threads) == alone, "{threads} threads");
    }
}

/// Tokens and bytes are what some limits are about.
#[test]
fn costs_come_from_a_field_and_fractions_round_up() {
    let costs = |text: &str, field: &str, fields: &[(&str, &str)]| {
        let fields = fields.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
        let options = LogOptions { cost_field: Some(field.to_owned()), fields, ..LogOptions::default() };
        let mut reader = LogReader::from_reader_with(Cursor::new(text.as_bytes().to_vec()), options).unwrap();
        let mut costs = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            costs.push(entry.cost);
        }
        (costs, reader.stats().without_cost)
    };
    assert_eq!(costs(&lines("a", 0..2), "bytes", &[]), (vec![100, 100], 0));
    let json = r#"{"time":1795256132,"ip":"a","usage":{"tokens":12}}
{"time":1795256132,"ip":"a","usage":{"tokens":2.1}}
{"time":1795256132,"ip":"a","usage":{"tokens":"7.5"}}
{"time":1795256132,"ip":"a","usage":{"tokens":-3}}
{"time":1795256132,"ip":"a"}
"#;
    assert_eq!(costs(json, "usage.tokens", &[]), (vec![12, 3, 8, 1, 1], 2));
    let csv = "time,ip,tokens\n1795256132,a,5\n1795256133,a,\n1795256134,a,1.000001\n";
    assert_eq!(costs(csv, "tokens", &[]), (vec![5, 1, 2], 1));
    assert_eq!(costs(csv, "tokens", &[("tenant", "ip")]).0, [5, 1, 2]);
}

/// A typo in a mapping must not pass for a field that no request has.
#[test]
fn fields_that_a_log_does_not_have_are_errors_or_shown() {
    let fields = |source: &str| vec![("tenant".to_owned(), source.to_owned())];
    let nginx = LogFormat::parse("nginx:$remote_addr [$time_local] $http_x_tenant").unwrap();
    let options = LogOptions { format: Some(nginx), fields: fields("x_tenant"), ..LogOptions::default() };
    let error = LogReader::from_reader_with(Cursor::new(b"".to_vec()), options).err().unwrap();
    assert_eq!(
        error.to_string(),
        "-: format `nginx` has no variable `x_tenant`: it has `remote_addr`, `time_local`, `http_x_tenant`"
    );
    let options = LogOptions { fields: fields("x_tenant"), ..LogOptions::default() };
    let error =
        LogReader::from_reader_with(Cursor::new(lines("a", 0..1).into_bytes()), options).err().unwrap();
    assert_eq!(
        error.to_string(),
        "-: format `combined` has no named fields, so `x_tenant` is unknown: expected `--cost-field bytes`, or a format \
         with names, such as `nginx:FORMAT`, `json` or `csv`"
    );
    let options = LogOptions { fields: fields("tenent"), ..LogOptions::default() };
    let csv = "time,ip,tenant\n1795256132,a,x\n";
    let mut reader = LogReader::from_reader_with(Cursor::new(csv.as_bytes().to_vec()), options).unwrap();
    assert_eq!(clients(&mut reader).0, ["a"]);
    assert!(
        reader.stats().notes().contains(&"- has no column `tenent`".to_owned()),
        "{:?}",
        reader.stats().notes()
    );
}

/// A mistyped format is found before a large log is read.
#[test]
fn invalid_formats_are_errors_that_say_why() {
    let folder = Folder::new("formats");
    let config = folder.file(
        "nginx.conf",
        "http {\n  log_format one '$remote_addr [$time_local] '\n    \"\\\"$request\\\"\"; # first\n  log_format two escape=none $msec;\n}\n",
    );
    let none = folder.file("none.conf", "http { access_log off; }\n");
    let (config, none) = (config.display(), none.display());
    let error = |text: &str| LogFormat::parse(text).unwrap_err();
    assert!(error("xml").starts_with("must be `common`, `combined`, "));
    assert_eq!(
        error("nginx:$remote_addr$time_local"),
        "format `nginx`: `remote_addr` and `time_local` are next to each other, and cannot be separated: expected a \
         literal, such as a space, between them"
    );
    let log = folder.file("one.log", "x\n");
    let without_time = |text: &str| {
        let options = LogOptions { format: Some(LogFormat::parse(text).unwrap()), ..LogOptions::default() };
        LogReader::open_all(std::slice::from_ref(&log), options).err().unwrap().to_string()
    };
    for (format, name, variables) in [
        ("nginx:$remote_addr", "nginx", "`$time_local`, `$time_iso8601` or `$msec`"),
        ("envoy:%PROTOCOL%", "envoy", "`%START_TIME%`"),
        ("apache:%h", "apache", "`%t`"),
    ] {
        let expected = format!(
            "{}: format `{name}` has no time: expected a variable such as {variables}, or one that \
             `--field time=VARIABLE` names",
            log.display()
        );
        assert_eq!(without_time(format), expected);
    }
    assert_eq!(error("nginx:hello"), "format `nginx`: no variables: expected some, such as `$remote_addr`");
    assert_eq!(
        error(&format!("nginx:@{config}")),
        format!(
            "{config}: several `log_format`: name one of `one`, `two`, for example `nginx:@{config}:one`"
        )
    );
    assert_eq!(
        error(&format!("nginx:@{config}:main")),
        format!("{config}: no `log_format main`: the file has `one`, `two`")
    );
    assert!(error(&format!("nginx:@{none}")).starts_with(&format!("{none}: no `log_format`: expected one")));
    assert!(error("nginx:@nowhere").starts_with("nowhere: No such file"));

    let format = LogFormat::parse(&format!("nginx:@{config}:one")).unwrap();
    let log = "192.0.2.7 [20/Nov/2026:10:00:00 +0000] \"GET /a HTTP/1.1\"\n";
    let options = LogOptions { format: Some(format), ..LogOptions::default() };
    let mut reader = LogReader::from_reader_with(Cursor::new(log.as_bytes().to_vec()), options).unwrap();
    let entry = reader.next_entry().unwrap().unwrap();
    assert_eq!((entry.client, entry.request.as_ref().unwrap().path()), (&b"192.0.2.7"[..], &b"/a"[..]));
    assert_eq!(reader.stats().logs[0].format, "nginx one");
}

/// `zstd` writes frames one after the other, and tools put frames in between that are to be
/// skipped. The file is of `zstd`: two frames of ten lines, with a skippable frame between them.
#[test]
fn zstd_of_several_frames_is_read_as_one_log() {
    let bytes = include_bytes!("two-frames.log.zst");
    let mut reader = LogReader::from_reader(Cursor::new(bytes.to_vec())).unwrap();
    assert_eq!(clients(&mut reader), (vec!["192.0.2.1".to_owned(); 20], vec![]));
    assert_eq!(reader.stats().logs[0].format, "common, zstd");
    let mut cut = LogReader::from_reader(Cursor::new(bytes[..bytes.len() - 20].to_vec())).unwrap();
    let (read, errors) = clients(&mut cut);
    assert_eq!(read.len(), 10, "the first frame");
    assert_eq!(errors, ["-: zstd data ends in the middle after line 10; `zstd -t` checks a copy"]);

    let mut flipped = bytes.to_vec();
    let checksum = flipped.len() - 1;
    flipped[checksum] ^= 1;
    let (read, errors) = clients(&mut LogReader::from_reader(Cursor::new(flipped)).unwrap());
    assert_eq!(read.len(), 20);
    let expected = "-: zstd data is damaged (the checksum of a frame does not match) after line 20; `zstd -t` checks a copy";
    assert_eq!(errors, [expected]);
}

/// Whoever looks into a log that was cut off wants what is left of it, as `zstd -dc` prints it. The
/// decoder keeps the last window of a frame, which of a small file is all of it.
#[test]
fn a_small_zstd_file_that_is_damaged_yields_the_lines_before() {
    let line = "192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n";
    // A frame without a checksum, with a window of 8 MiB; a block that is not compressed.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x68];
    let lines = line.repeat(3);
    let block = |size: usize, kind: u32| ((u32::try_from(size).unwrap() << 3) | (kind << 1)).to_le_bytes();
    frame.extend_from_slice(&block(lines.len(), 0)[..3]);
    frame.extend_from_slice(lines.as_bytes());
    let cut = [&frame[..], &block(lines.len(), 0)[..3], &lines.as_bytes()[..20]].concat();
    // Kind 3 is reserved.
    let damaged = [&frame[..], &block(4, 3)[..3], b"????", lines.as_bytes()].concat();
    for (bytes, what) in [(cut, "ends in the middle"), (damaged, "is damaged (a block cannot be decoded)")] {
        let (read, errors) = clients(&mut LogReader::from_reader(Cursor::new(bytes)).unwrap());
        assert_eq!(read.len(), 3, "{what}");
        assert_eq!(errors, [format!("-: zstd data {what} after line 3; `zstd -t` checks a copy")]);
    }
}

/// A decompression bomb, an endless line and bytes that are no text must cost little memory and no
/// request.
#[test]
fn hostile_bytes_are_counted_and_the_rest_is_read() {
    let bomb = gzip(&vec![0; 8 << 20]);
    let mut bytes = gzip(lines("a", 0..3).as_bytes());
    bytes.extend(bomb);
    bytes.extend(gzip(format!("\n\u{0}\u{0}\n{}", lines("b", 3..5)).as_bytes()));
    let mut reader = LogReader::from_reader(Cursor::new(bytes)).unwrap();
    assert_eq!(clients(&mut reader), (["a", "a", "a", "b", "b"].map(str::to_owned).to_vec(), vec![]));
    assert_eq!((reader.stats().lines, reader.stats().malformed), (7, 2));

    let json = b"{\"time\":1795256132,\"ip\":\"a\",\"path\":\"/\xff\"}\n{\"time\":1795256133,\"ip\":\"b\"}\n{\"time\":".to_vec();
    let mut deep = json.clone();
    deep.extend(b"[".repeat(60_000));
    let mut reader = LogReader::from_reader(Cursor::new(deep)).unwrap();
    assert_eq!(clients(&mut reader).0, ["a", "b"]);
    assert_eq!(reader.stats().malformed, 1);
}

/// The report says how times were read: slow requests look later at their end.
#[test]
fn notes_say_which_time_was_used() {
    let visits = visits();
    let notes_of = |name: &str, options: LogOptions| {
        let written = writer::all().iter().find(|log| log.name == name).unwrap();
        let mut reader = LogReader::from_reader_with(Cursor::new(written.text.as_bytes()), options).unwrap();
        clients(&mut reader);
        reader.stats().notes().join("\n")
    };
    let caddy = notes_of("caddy", LogOptions::default());
    let derived =
        format!("{} requests are decided at their start: the logged end less the duration", visits.len());
    assert_eq!(caddy, format!("-: format caddy (detected)\n{derived}"));
    let logged = notes_of("caddy", LogOptions { derive_start: false, ..LogOptions::default() });
    assert!(logged.contains("requests are decided at their end"), "{logged}");
    let combined = notes_of("combined", LogOptions::default());
    assert!(combined.contains("times are as logged: nginx logs the end"), "{combined}");
    assert_eq!(notes_of("envoy", LogOptions::default()), "-: format envoy (detected)");
}

/// The same traffic comes from a file, an archive or a container.
#[test]
fn compression_and_wrappers_change_no_decision() {
    let read = |bytes: Vec<u8>| {
        let format = Some(LogFormat::parse(&format!("nginx:{FIXTURE_FORMAT}")).unwrap());
        let options = LogOptions { format, ..LogOptions::default() };
        decisions(&mut LogReader::from_reader_with(Cursor::new(bytes), options).unwrap())
    };
    let plain = read(FIXTURE.as_bytes().to_vec());
    assert_eq!(plain.len(), FIXTURE.lines().count());
    assert!(read(gzip(FIXTURE.as_bytes())) == plain);
    let syslog = FIXTURE.lines().map(|line| format!("Nov 20 10:15:32 lb1 nginx: {line}\n"));
    assert!(read(syslog.collect::<String>().into_bytes()) == plain);
}

/// Entries of a log in a format, with fields: client, and time in microseconds.
fn entries(log: &str, format: Option<&str>, fields: &[(&str, &str)]) -> Vec<(String, u64)> {
    let fields = fields.iter().map(|(name, source)| ((*name).to_owned(), (*source).to_owned())).collect();
    let format = format.map(|format| LogFormat::parse(format).unwrap());
    let options = LogOptions { format, fields, ..LogOptions::default() };
    let mut reader = LogReader::from_reader_with(Cursor::new(log.as_bytes().to_vec()), options).unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let client = String::from_utf8_lossy(entry.client).into_owned();
        entries.push((client, entry.time_us));
    }
    entries
}

/// 10:00:00 on 2026-11-20.
const TEN_US: u64 = 1_795_168_800_000_000;

/// Apache logs the start of a request: an hour-long download must not begin an hour early.
#[test]
fn a_log_format_of_apache_has_the_start() {
    let format = r#"apache:%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{X-Tenant}i\" %D"#;
    let log = "shop:443 192.0.2.7 - alice [20/Nov/2026:10:00:00 +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"t1\" 3600000000\n";
    assert_eq!(entries(log, Some(format), &[]), [("192.0.2.7".to_owned(), TEN_US)]);
    let precise = "apache:%a %{usec}t %{ms}T %{X-Tenant}i";
    let log = "192.0.2.7 1795168800000123 250 t1\n";
    assert_eq!(entries(log, Some(precise), &[]), [("192.0.2.7".to_owned(), TEN_US + 123)]);
}

/// A format of one's own may have the time under any name.
#[test]
fn a_format_whose_time_is_a_field_that_the_user_names_is_read() {
    let log = "192.0.2.7 1795168800 /a\n";
    let read = entries(log, Some("nginx:$remote_addr $my_start $uri"), &[("time", "my_start")]);
    assert_eq!(read, [("192.0.2.7".to_owned(), TEN_US)]);
}

/// HAProxy sends its lines to a syslog socket without a host; what listens writes them as they are.
#[test]
fn datagrams_of_haproxy_have_no_host() {
    let line = "192.0.2.7:50000 [20/Nov/2026:10:00:00.000] web app/one 0/0/1/2/3 200 5 - - ---- 1/1/0/0/0 0/0 \"GET / HTTP/1.1\"";
    for start in ["<134>Nov 20 10:00:00 haproxy[812]: ", "<134>Nov 20 10:00:00 lb1 haproxy[812]: "] {
        let log = format!("{start}{line}\n").repeat(3);
        let read = entries(&log, None, &[]);
        assert_eq!(read, vec![("192.0.2.7".to_owned(), TEN_US); 3], "{start}");
    }
}

/// "No identity after the client" does not help somebody whose log is JSON.
#[test]
fn json_without_a_known_time_says_so() {
    let log = "{\"when\":\"2026-11-20T10:00:00Z\",\"who\":\"192.0.2.7\"}\n".repeat(2);
    let (_, errors) = clients(&mut LogReader::from_reader(Cursor::new(log.into_bytes())).unwrap());
    let expected = "-: no request in 2 lines: JSON without a time under a usual name; name it, for example \
                    `--field time=when.at`, and so the client, `--field ip=SOURCE`\n";
    assert!(errors[0].starts_with(expected), "{errors:?}");
}
