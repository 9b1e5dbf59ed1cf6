//! Parses Redis URLs: one server, the nodes of a cluster, or Sentinels and a master's name.
//!
//! Parsed here because URL libraries accept only a single host, and their errors would reveal passwords. No
//! error repeats any part of the text: in an unparsable URL, a password may be anywhere. For the same reason
//! the characters of hosts and paths are restricted: parsed values are printed.

use std::net::Ipv6Addr;

use crate::options::InvalidOptions;
use crate::options::{Address, Credentials, Options, Servers};

/// The default port of a server.
const SERVER_PORT: u16 = 6379;
/// The default port of a Sentinel.
const SENTINEL_PORT: u16 = 26_379;
/// Maximum addresses in one URL.
const MAX_ADDRESSES: usize = 64;

const SERVER: &str = "redis://127.0.0.1:6379";
const SOCKET: &str = "unix:///run/redis/redis.sock";
const CLUSTER: &str = "redis+cluster://10.0.0.1:6379,10.0.0.2:6379";
const SENTINEL: &str = "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster";

impl Options {
    /// The options for a URL's servers, with defaults for everything else. The crate's page lists the URL
    /// forms.
    ///
    /// # Errors
    /// An unknown scheme, a missing host or name of a master, a port or database that is no number, a parameter
    /// that the scheme does not have.
    pub fn from_url(url: &str) -> Result<Self, InvalidOptions> {
        read(url.trim_ascii()).map_err(|Wrong { what, example }| {
            InvalidOptions::new(format!("redis url: {what}; give for example `{example}`"))
        })
    }
}

/// The invalid part of a URL, and a valid example.
struct Wrong {
    what: String,
    example: &'static str,
}

fn wrong<T>(what: impl Into<String>, example: &'static str) -> Result<T, Wrong> {
    Err(Wrong { what: what.into(), example })
}

fn read(url: &str) -> Result<Options, Wrong> {
    if url.contains(char::is_control) {
        return wrong("it has a control character, such as a line end", SERVER);
    }
    let Some((scheme, rest)) = url.split_once("://") else {
        return wrong("it must begin with `redis://` or another scheme", SERVER);
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    match scheme {
        "redis" | "rediss" => server(rest, query, scheme == "rediss"),
        "unix" | "redis+unix" => socket(rest, query),
        "redis+cluster" | "rediss+cluster" => cluster(rest, query, scheme == "rediss+cluster"),
        "redis+sentinel" | "rediss+sentinel" => sentinel(rest, query, scheme == "rediss+sentinel"),
        _ => wrong(
            "its scheme is none of `redis`, `rediss`, `unix`, `redis+cluster`, `rediss+cluster`, \
             `redis+sentinel`, `rediss+sentinel`",
            SERVER,
        ),
    }
}

fn server(rest: &str, query: &str, tls: bool) -> Result<Options, Wrong> {
    parameters(query, &[], SERVER)?;
    let (credentials, rest) = credentials(rest, SERVER)?;
    let (host, database) = rest.split_once('/').unwrap_or((rest, ""));
    if host.contains(',') {
        return wrong(
            "a comma separates several servers, which only a cluster or Sentinels have; options belong into the \
             form of a URL",
            CLUSTER,
        );
    }
    let database = number(database, SERVER)?;
    let servers = Servers::Node(address(host, SERVER_PORT, SERVER)?);
    Ok(Options { credentials, database, ..Options::new(servers, tls) })
}

fn socket(path: &str, query: &str) -> Result<Options, Wrong> {
    let [database, user, password] = parameters(query, &["db", "user", "pass"], SOCKET)?[..] else {
        return wrong("its parameters cannot be read", SOCKET);
    };
    if !path.starts_with('/') || path.len() == 1 {
        return wrong("its path does not begin with `/`", SOCKET);
    }
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+~%".contains(c);
    if !path.chars().all(is_plain) {
        return wrong("its path has a character that must be percent-encoded", SOCKET);
    }
    let servers = Servers::Node(Address::Unix(decoded(path, SOCKET)?.into()));
    let database = number(database.unwrap_or_default(), SOCKET)?;
    let credentials = named(user, password, SOCKET)?;
    Ok(Options { credentials, database, ..Options::new(servers, false) })
}

fn cluster(rest: &str, query: &str, tls: bool) -> Result<Options, Wrong> {
    parameters(query, &[], CLUSTER)?;
    let (credentials, rest) = credentials(rest, CLUSTER)?;
    let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
    if number(database, CLUSTER)? != 0 {
        return wrong("a cluster has only database 0", CLUSTER);
    }
    let servers = Servers::Cluster(addresses(hosts, SERVER_PORT, CLUSTER)?);
    Ok(Options { credentials, ..Options::new(servers, tls) })
}

fn sentinel(rest: &str, query: &str, tls: bool) -> Result<Options, Wrong> {
    let [user, password] = parameters(query, &["sentinel_user", "sentinel_pass"], SENTINEL)?[..] else {
        return wrong("its parameters cannot be read", SENTINEL);
    };
    let sentinel_credentials = named(user, password, SENTINEL)?;
    let (credentials, rest) = credentials(rest, SENTINEL)?;
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return wrong("it names no master", SENTINEL);
    }
    let sentinels = addresses(hosts, SENTINEL_PORT, SENTINEL)?;
    let master = decoded(master, SENTINEL)?;
    // The characters that Sentinel allows. It is printed, so it must not be an option with a password.
    if !master.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')) {
        return wrong("the master's name may have letters, digits, `.`, `-` and `_`", SENTINEL);
    }
    let servers = Servers::Sentinel { sentinels, master };
    let database = number(database, SENTINEL)?;
    Ok(Options { credentials, sentinel_credentials, database, ..Options::new(servers, tls) })
}

/// Splits off user and password before the last `@`. They apply to all servers.
fn credentials<'a>(rest: &'a str, example: &'static str) -> Result<(Credentials, &'a str), Wrong> {
    let Some((before, rest)) = rest.rsplit_once('@') else { return Ok((Credentials::default(), rest)) };
    if before.contains('@') && before.contains(',') {
        return wrong(
            "user and password stand once, before the first server; in a password, `@` is `%40` and `,` is `%2C`",
            example,
        );
    }
    let Some((user, password)) = before.split_once(':') else {
        return wrong("it names a user without a password", "redis://user:password@127.0.0.1:6379");
    };
    let user = (!user.is_empty()).then_some(user);
    Ok((named(user, Some(password), example)?, rest))
}

fn named(user: Option<&str>, password: Option<&str>, example: &'static str) -> Result<Credentials, Wrong> {
    if user.is_some() && password.is_none() {
        return wrong("it names a user without a password", example);
    }
    let user = user.map(|user| decoded(user, example)).transpose()?;
    let password = password.map(|password| decoded(password, example)).transpose()?;
    // No server has an empty password: `user:@host` results from an unset variable.
    if password.as_deref() == Some("") {
        return wrong("its password is empty", example);
    }
    Ok(Credentials { user, password })
}

fn addresses(hosts: &str, port: u16, example: &'static str) -> Result<Vec<Address>, Wrong> {
    let addresses = hosts.split(',').map(|host| address(host.trim(), port, example));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    if addresses.len() > MAX_ADDRESSES {
        return wrong(
            format!("it names {} servers, and {MAX_ADDRESSES} are enough", addresses.len()),
            example,
        );
    }
    Ok(addresses)
}

fn address(text: &str, default_port: u16, example: &'static str) -> Result<Address, Wrong> {
    const IPV6: &str = "redis://[::1]:6379";
    let (host, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let Some((host, port)) = bracketed.split_once(']') else {
            return wrong("a bracket must be closed", IPV6);
        };
        let (ip, zone) = host.split_once('%').unwrap_or((host, "0"));
        if ip.parse::<Ipv6Addr>().is_err() || !zone.chars().all(is_of_host) {
            return wrong("brackets must hold an IPv6 address", IPV6);
        }
        (host, port.strip_prefix(':').unwrap_or(port))
    } else if text.matches(':').count() > 1 {
        return wrong(
            "an address has several colons: put an IPv6 address in brackets, and a password before an `@`",
            IPV6,
        );
    } else {
        text.split_once(':').unwrap_or((text, ""))
    };
    if host.is_empty() {
        return wrong("it names no host", example);
    }
    if !text.starts_with('[') && !host.chars().all(is_of_host) {
        return wrong("a host has a character that no host name has", example);
    }
    let port = match port {
        "" => default_port,
        text => match text.parse() {
            Ok(port) if port > 0 => port,
            _ => return wrong("a port must be a number from 1 to 65535", example),
        },
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

fn is_of_host(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '-' | '_')
}

fn number(database: &str, example: &'static str) -> Result<u32, Wrong> {
    if database.is_empty() {
        return Ok(0);
    }
    // Redis numbers databases with C integers.
    match database.parse::<i32>().ok().and_then(|number| u32::try_from(number).ok()) {
        Some(number) => Ok(number),
        None => wrong("the database behind `/` must be a number from 0", example),
    }
}

/// The values of the parameters with these names, in that order.
fn parameters<'a>(
    query: &'a str,
    names: &[&str],
    example: &'static str,
) -> Result<Vec<Option<&'a str>>, Wrong> {
    let mut values = vec![None; names.len()];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match names.iter().position(|known| *known == name) {
            Some(at) => values[at] = Some(value),
            None if names.is_empty() => return wrong("this scheme has no parameters after `?`", example),
            None => {
                let known = names.join("`, `");
                return wrong(format!("invalid parameter after `?`: must be one of `{known}`"), example);
            }
        }
    }
    Ok(values)
}

/// Decodes percent-encoding: `%41` is `A`.
fn decoded(text: &str, example: &'static str) -> Result<String, Wrong> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let code = digit().zip(digit()).and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        let Some(code) = code else {
            return wrong("invalid `%`: must be followed by two hexadecimal digits", example);
        };
        bytes.push(code);
    }
    String::from_utf8(bytes).or_else(|_| wrong("invalid text after decoding `%`: must be UTF-8", example))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn error(url: &str) -> String {
        Options::from_url(url).unwrap_err().to_string()
    }

    /// Most users configure Redis with only a URL.
    #[test]
    fn every_form_of_url_is_read() {
        let plain = Options::from_url("redis://h").unwrap();
        assert_eq!(plain.servers, Servers::Node(tcp("h", 6379)));
        assert!(!plain.tls);
        let full = Options::from_url("rediss://me:p%40ss%2Fword@h:7000/3").unwrap();
        assert_eq!(full.servers, Servers::Node(tcp("h", 7000)));
        assert!(full.tls);
        assert_eq!(full.database, 3);
        assert_eq!(full.credentials.user.as_deref(), Some("me"));
        assert_eq!(full.credentials.password, Some("p@ss/word".to_owned()));
        assert_eq!(Options::from_url("redis://:p@[::1]").unwrap().servers, Servers::Node(tcp("::1", 6379)));
        assert_eq!(Options::from_url("redis://:p@[::1]").unwrap().credentials.user, None);
        let unix = Options::from_url("unix:///run/r.sock?db=2&user=me&pass=p").unwrap();
        assert_eq!(unix.servers, Servers::Node(Address::Unix("/run/r.sock".into())));
        assert_eq!(unix.database, 2);
        assert_eq!(unix.credentials.password, Some("p".to_owned()));
        assert_eq!(
            Options::from_url("redis+unix:///r.sock").unwrap().servers,
            Servers::Node(Address::Unix("/r.sock".into()))
        );
        let cluster = Options::from_url("rediss+cluster://me:p@a:1,b:2").unwrap();
        assert_eq!(cluster.servers, Servers::Cluster(vec![tcp("a", 1), tcp("b", 2)]));
        assert!(cluster.tls);
        let sentinel = Options::from_url("redis+sentinel://:p@a,b:2/main/1?sentinel_pass=s").unwrap();
        let sentinels = vec![tcp("a", 26_379), tcp("b", 2)];
        assert_eq!(sentinel.servers, Servers::Sentinel { sentinels, master: "main".to_owned() });
        assert_eq!(sentinel.database, 1);
        assert_eq!(sentinel.sentinel_credentials.password, Some("s".to_owned()));
    }

    /// A mistyped URL must say what is expected, though the text may contain a password.
    #[test]
    fn wrong_urls_say_what_is_right() {
        for (url, what, example) in [
            ("localhost:6379", "it must begin with `redis://` or another scheme", SERVER),
            ("redis://h/x", "the database behind `/` must be a number from 0", SERVER),
            (
                "redis://a,b",
                "a comma separates several servers, which only a cluster or Sentinels have; options belong into the \
                 form of a URL",
                CLUSTER,
            ),
            ("redis+sentinel://a:1", "it names no master", SENTINEL),
            ("redis+cluster://a:1/2", "a cluster has only database 0", CLUSTER),
            ("unix://r.sock", "its path does not begin with `/`", SOCKET),
            (
                "redis://fe80::1:6379",
                "an address has several colons: put an IPv6 address in brackets, and a password before an `@`",
                "redis://[::1]:6379",
            ),
            ("redis://h:0", "a port must be a number from 1 to 65535", SERVER),
        ] {
            assert_eq!(error(url), format!("redis url: {what}; give for example `{example}`"), "{url}");
        }
        assert!(error("http://h").starts_with("redis url: its scheme is none of `redis`, `rediss`"));
    }

    /// Errors and parsed URLs end up in logs and tickets, so neither may contain passwords.
    #[test]
    fn no_form_of_a_url_shows_a_password() {
        for url in [
            "h:6380,password=hidden,ssl=True,abortConnect=False",
            "redis://h:6380,password=hidden,ssl=True",
            "redis+cluster://h:6380,password=hidden",
            "redis+cluster://:hidden@a:1,:hidden@b:2",
            "redis+cluster://a:1,:hidden@b:2",
            "redis://:a@h:1,:hidden@h:2",
            "redis+sentinel://a:1,b:2/m,password=hidden",
            "redis+sentinel://a:1/m?sentinel_pass=hidden&x=1",
            "redis+sentinel://:hidden@a,:hidden@b/m",
            "redis://me:hidden@h:0",
            "redis://me:hid@hidden@h:x",
            "redis://me:hidden",
            "redis://hidden@h",
            "redis:/:hidden@h",
            "redis:hidden@h",
            "redis//:hidden@h",
            "://:hidden@h",
            "hidden",
            "me:hidden@h",
            "redis://:hidden@:1",
            "redis://:hidden@[::1",
            "redis://[hidden]:1",
            "redis://[::1%hidden!]:1",
            "redis://::hidden",
            "redis://h:hidden",
            "redis://h:1:hidden",
            "redis://h hidden",
            "redis://h\nhidden",
            "redis://:hidden@h:1\nredis://:hidden@h:2",
            "redis://h/hidden",
            "redis://h:1/0/hidden",
            "redis://me:hidden%@h",
            "redis://me:hidden%ff@h",
            "redis://h?pass=hidden",
            "redis://u:hid?hidden@h",
            "unix:///r.sock?password=hidden",
            "unix:///r.sock?hidden",
            "unix:///r.sock password=hidden",
            "unix:///r.sock,password=hidden",
            "unix://:hidden@/r.sock",
            "redis-cli -a hidden -h h",
            "\"redis://:hidden@h\"",
            "{\"host\": \"h\", \"password\": \"hidden\"}",
            // These are valid.
            "redis://:hidden@h",
            " redis://:hidden@h\r\n",
            "redis://me:hid@hidden/#hidden@h:1/1",
            "rediss+cluster://:hidden@a,b",
            "unix:///r.sock?user=me&pass=hidden",
            "redis+sentinel://:hidden@a,b/m?sentinel_pass=hidden",
        ] {
            let shown = match Options::from_url(url) {
                Err(error) => format!("{error} {error:?}"),
                Ok(options) => format!("{options} {options:?}"),
            };
            assert!(!shown.contains("hid"), "{url}: {shown}");
        }
    }

    /// White space around a secret comes from files and variables of orchestrators.
    #[test]
    fn white_space_around_a_url_is_no_part_of_it() {
        assert_eq!(
            Options::from_url(" redis://:p@h:1\r\n").unwrap(),
            Options::from_url("redis://:p@h:1").unwrap()
        );
    }
}
