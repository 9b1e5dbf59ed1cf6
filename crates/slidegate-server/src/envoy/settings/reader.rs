//! Reads environment variables by type: strings, booleans, durations, addresses. Collects all
//! errors.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use slidegate::clock::parse_window;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(super) struct Reader<'v> {
    pub(super) variable: &'v dyn Fn(&str) -> Option<String>,
    pub(super) errors: Vec<String>,
}

impl Reader<'_> {
    /// The value of a variable. Empty counts as unset.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// Reports an invalid value. `fix`: what is expected or how to fix it.
    pub(super) fn invalid(&mut self, name: &str, value: &str, fix: impl Display) {
        self.errors.push(format!("invalid {name} `{}`: {fix}", value.escape_debug()));
    }

    pub(super) fn read<T, E: Display>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let value = self.text(name)?;
        read(&value).map_err(|error| self.errors.push(format!("{name}: {error}"))).ok()
    }

    pub(super) fn parsed<T: FromStr>(&mut self, name: &str, fix: &str) -> Option<T> {
        let value = self.text(name)?;
        let parsed = value.parse().ok();
        if parsed.is_none() {
            self.invalid(name, &value, fix);
        }
        parsed
    }

    pub(super) fn bool(&mut self, name: &str) -> bool {
        let Some(value) = self.text(name) else { return false };
        match value.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => {
                self.invalid(name, &value, "must be `true` or `false`");
                false
            }
        }
    }

    pub(super) fn duration(&mut self, name: &str) -> Option<Duration> {
        self.read(name, parse_window)
    }

    pub(super) fn address(&mut self, host: &str, port: &str, default_port: u16) -> SocketAddr {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let ip = match self.text(host).as_deref() {
            None => any,
            Some("localhost") => LOOPBACK,
            Some(_) => self
                .parsed::<IpAddr>(host, "must be an IP address, for example `0.0.0.0` or `127.0.0.1`")
                .unwrap_or(any),
        };
        let port = self.parsed(port, "must be a port, for example `8081`").unwrap_or(default_port);
        SocketAddr::new(ip, port)
    }

    /// An address in Go syntax: without a host it means all addresses.
    pub(super) fn go_address(&mut self, name: &str, default_port: u16) -> SocketAddr {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, default_port));
        let Some(text) = self.text(name) else { return any };
        let full = match text.strip_prefix("localhost") {
            Some(port) => format!("{LOOPBACK}{port}"),
            None if text.starts_with(':') => format!("{}{text}", Ipv4Addr::UNSPECIFIED),
            None => text.clone(),
        };
        full.parse().unwrap_or_else(|_| {
            self.invalid(name, &text, "must be a port or an address with one, for example `:9090`");
            any
        })
    }
}
