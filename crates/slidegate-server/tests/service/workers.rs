//! Workers: several threads accept the connections of one address, and share them evenly.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirEntry, read_dir, read_link, read_to_string};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread::available_parallelism;

use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, slidegate, text};

const POLICY: &str = "policies: [{name: p, scope: [user], quota: 1000/1h}]\n";
/// A request, and the end of its reply or of its head.
type Exchange = (&'static [u8], &'static [u8]);
const HTTP: Exchange = (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\r\n\r\n");
const RESP: Exchange = (b"PING\r\n", b"+PONG\r\n");

/// A connection over TCP or a Unix socket.
trait Client: Read + Write {}
impl<T: Read + Write> Client for T {}

/// The sockets of a process by descriptor: `socket:[INODE]`.
fn sockets(pid: u32) -> BTreeMap<u32, String> {
    let of = |file: std::io::Result<DirEntry>| {
        let file = file.ok()?;
        let link = read_link(file.path()).ok()?.display().to_string();
        let number = file.file_name().to_str()?.parse().ok()?;
        link.starts_with("socket:").then_some((number, link))
    };
    read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(of).collect()
}

/// Connections that each worker serves, besides the sockets that were open `before`.
fn shares(pid: u32, before: &BTreeMap<u32, String>) -> Vec<usize> {
    let now = sockets(pid);
    let before: BTreeSet<_> = before.values().collect();
    // What each epoll instance watches. Several descriptors of one instance list the same.
    let watched = |file: std::io::Result<DirEntry>| {
        let info = read_to_string(file.ok()?.path()).ok()?;
        let number = |line: &str| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok();
        let sockets = info.lines().filter_map(number).filter_map(|number: u32| now.get(&number));
        Some(sockets.filter(|socket| !before.contains(socket)).collect::<BTreeSet<_>>())
    };
    let instances: BTreeSet<_> =
        read_dir(format!("/proc/{pid}/fdinfo")).unwrap().filter_map(watched).collect();
    instances.iter().map(BTreeSet::len).filter(|count| *count > 0).collect()
}

/// A connection to `HOST:PORT` or `unix:PATH`, on which a reply has come.
fn connect(address: &str, (request, end): Exchange) -> Box<dyn Client> {
    let mut stream: Box<dyn Client> = match address.strip_prefix("unix:") {
        Some(path) => Box::new(UnixStream::connect(path).unwrap()),
        None => Box::new(TcpStream::connect(address).unwrap()),
    };
    stream.write_all(request).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(end) {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", text(&reply));
        reply.push(byte[0]);
    }
    stream
}

/// A server with HTTP over TCP and a Unix socket, and RESP, and the address of RESP.
fn serve(folder: &TempDir, socket: &str) -> (Server, String) {
    let config = format!("{POLICY}server: {{socket: {socket}}}\nresp: {{listen: '127.0.0.1:0'}}\n");
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", config)]);
    let resp = server.address_of("resp").to_owned();
    (server, resp)
}

/// A pool of a few connections must not end on one processor by chance.
#[test]
fn a_few_connections_are_spread_evenly_over_the_workers() {
    let folder = TempDir::new("workers-spread");
    let socket = folder.path().join("http.sock").display().to_string();
    let workers = available_parallelism().unwrap().get();
    for protocol in ["http", "resp", "unix"] {
        let (server, resp) = serve(&folder, &socket);
        let (address, exchange) = match protocol {
            "http" => (server.address.clone(), HTTP),
            "resp" => (resp, RESP),
            _ => (format!("unix:{socket}"), HTTP),
        };
        let before = sockets(server.pid());
        let open: Vec<_> = (0..3 * workers).map(|_| connect(&address, exchange)).collect();
        assert_eq!(shares(server.pid(), &before), vec![3; workers], "{protocol}");
        drop(open);
    }
}

/// The sockets of one process share a port; a second process by mistake must not take a part of the
/// requests.
#[test]
fn a_second_process_on_a_port_is_refused() {
    let folder = TempDir::new("workers-second");
    let (first, resp) = serve(&folder, &folder.path().join("http.sock").display().to_string());
    let in_use = "Address already in use (os error 98)";
    for (args, address, option) in [
        (["--listen", &first.address, "--resp", "127.0.0.1:0"], &first.address, "--listen"),
        (["--listen", "127.0.0.1:0", "--resp", &resp], &resp, "--resp"),
    ] {
        let mut serve = slidegate();
        serve.arg("serve").args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut second = serve.spawn().unwrap();
        let mut greeting = String::new();
        BufReader::new(second.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
        if !greeting.is_empty() {
            second.kill().unwrap();
        }
        let line = format!("cannot listen on {address}: {in_use}; choose another address with {option}\n");
        let ended = second.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(2), line), "{greeting}");
    }
    for _ in 0..20 {
        drop(connect(&first.address, HTTP));
        drop(connect(&resp, RESP));
    }
}

/// A stop reaches all workers: nothing new is accepted, and idle connections end. Then a new process
/// gets the port at once.
#[test]
fn a_stop_closes_the_connections_of_all_workers_and_the_next_process_gets_the_port() {
    let folder = TempDir::new("workers-stop");
    let socket = folder.path().join("http.sock").display().to_string();
    let (mut server, resp) = serve(&folder, &socket);
    let unix = format!("unix:{socket}");
    let addresses = [(&server.address, HTTP), (&resp, RESP), (&unix, HTTP)];
    let idle: Vec<_> = addresses
        .iter()
        .flat_map(|(address, exchange)| (0..8).map(|_| connect(address, *exchange)))
        .collect();
    server.signal("TERM");
    for mut stream in idle {
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    assert!(server.wait().success());
    assert!(TcpStream::connect(&resp).is_err() && UnixStream::connect(&socket).is_err());
    // The first process closed the connections, so the system still has the ports of some.
    let args = ["--resp", &resp];
    let next = Server::start_at(&server.address, &[], &args, Stdio::inherit());
    drop(connect(&next.address, HTTP));
    drop(connect(&resp, RESP));
}

/// A client that is refused must learn why, whichever thread refuses it.
#[test]
fn refused_clients_learn_why() {
    let folder = TempDir::new("workers-refused");
    let config = format!("{POLICY}resp: {{listen: '127.0.0.1:0', max_connections: 1}}\n");
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", config)]);
    let resp = server.address_of("resp");
    let _open = connect(resp, RESP);
    for _ in 0..20 {
        let mut refusal = String::new();
        TcpStream::connect(resp).unwrap().read_to_string(&mut refusal).unwrap();
        assert_eq!(refusal, "-ERR max number of clients reached\r\n");
    }
    let counted = server.get("/v1/status").json();
    assert_eq!(counted["connections"]["protocols"]["resp"]["refused"], 20, "{counted}");
}
