//! The RESP port as clients of Redis see it.

mod access;
mod bytes;
mod clients;
mod commands;
mod holds;
mod service;
mod transactions;

use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, text};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Far longer than any answer takes: what fails is an answer that never comes.
const PATIENCE: Duration = Duration::from_secs(60);

const POLICIES: &str = "
policies:
  - {name: per-user, scope: [user], quota: 5/1h}
  - {name: route, scope: [user, path], quota: 100/1h}
  - {name: per-ip, scope: [ip], quota: 5/1h}
  - {name: all, when: {user: nobody}, quota: 3/1h}
  - {name: trial, when: {trial: {present: true}}, scope: [user], quota: 1/1h, mode: shadow}
resp:
  listen: 127.0.0.1:0
";

/// A server with those policies and more keys of `resp`.
fn serve(folder: &TempDir, resp: &str) -> Server {
    Server::start(&["--config", &folder.file("slidegate.yaml", format!("{POLICIES}{resp}"))])
}

fn port(server: &Server) -> &str {
    server.address_of("resp").rsplit_once(':').unwrap().1
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address_of("resp")).expect("the RESP port is open");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads exactly these bytes.
fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    stream.read_exact(&mut read).expect("the server answers");
    assert_eq!(read.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// Sends bytes, then nothing more; everything that is answered until the server closes.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the server closes");
    answer.escape_ascii().to_string()
}

/// A command as clients send it.
fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
        bytes.extend(*argument);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A line, each word an argument, as a command.
fn words(line: &str) -> Vec<u8> {
    command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// What one command is answered.
fn ask(server: &Server, line: &str) -> String {
    exchange(server, &words(line))
}

fn succeed(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn client(program: &str, package: &str) -> Command {
    let found = slidegate_testkit::process::command(program).arg("--version").output();
    assert!(found.is_ok(), "`{program}` is missing: install {package}");
    slidegate_testkit::process::command(program)
}

/// redis-cli with these arguments, and what it prints.
fn cli(server: &Server, arguments: &[&str]) -> String {
    let mut cli = client("redis-cli", "redis-tools");
    text(&cli.args(["-p", port(server)]).args(arguments).stdin(Stdio::null()).output().unwrap().stdout)
}

/// What is answered to a PING by a server that may refuse the connection before it has read it.
fn exchange_or_reset(server: &Server) -> String {
    let mut stream = connect(server);
    let mut answer = Vec::new();
    let _ = stream.write_all(&words("PING")).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    let _ = stream.read_to_end(&mut answer);
    answer.escape_ascii().to_string()
}
