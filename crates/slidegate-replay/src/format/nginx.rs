//! nginx: a `log_format`, as text or from a configuration file, and the meaning of its variables.

use crate::block::Escape;
use crate::format::field::{CLIENT, Columns, Field, HOST, METHOD, PATH, REFERER, USER, USER_AGENT, target};
use crate::format::template::{Piece, Pieces, Syntax};
use crate::format::time::Unit;

pub(crate) const SYNTAX: Syntax = Syntax {
    escape: Escape::Backslash,
    pieces,
    target: |variable| target(VARIABLES, variable),
    header_attribute,
    time_examples: "`$time_local`, `$time_iso8601` or `$msec`",
    is_list,
};

/// Whether a variable may hold several values: one per upstream server, or a header's. Values of
/// `$upstream_status` are separated by `, `, and by ` : ` after an internal redirect.
fn is_list(variable: &str) -> bool {
    const PREFIXES: [&str; 3] = ["upstream_", "sent_http_", "sent_trailer_"];
    PREFIXES.iter().any(|prefix| variable.starts_with(prefix))
        || matches!(variable, FORWARDED | ADDED_FORWARDED | "http_forwarded" | "http_via")
}

/// The default of ingress-nginx.
pub(crate) const INGRESS: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_upstream_name] \
     [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time \
     $upstream_status $req_id";

/// Nginx Proxy Manager's defaults for proxied hosts, and for others.
pub(crate) const PROXY_MANAGER: [&str; 2] = [
    "[$time_local] $upstream_cache_status $upstream_status $status - $request_method $scheme $host \"$request_uri\" \
     [Client $remote_addr] [Length $body_bytes_sent] [Gzip $gzip_ratio] [Sent-to $server] \"$http_user_agent\" \
     \"$http_referer\"",
    "[$time_local] $status - $request_method $scheme $host \"$request_uri\" [Client $remote_addr] \
     [Length $body_bytes_sent] [Gzip $gzip_ratio] \"$http_user_agent\" \"$http_referer\"",
];

/// Parses a format: `$name`, `${name}` and literals.
pub(crate) fn pieces(format: &str) -> Vec<Piece> {
    let mut pieces = Pieces::default();
    let mut rest = format;
    while let Some((literal, after)) = rest.split_once('$') {
        pieces.literal(literal);
        let (name, after_name) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, after)) => (name, after),
            None => after.split_at(name_length(after)),
        };
        if name.is_empty() || name_length(name) != name.len() {
            pieces.literal("$");
            rest = after;
            continue;
        }
        pieces.variable(name);
        rest = after_name;
    }
    pieces.literal(rest);
    pieces.0
}

fn name_length(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
}

/// A `log_format` directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFormatDirective {
    pub(crate) name: String,
    pub(crate) escape: Escape,
    pub(crate) text: String,
}

/// The `log_format` directives of a configuration file, in order.
pub(crate) fn log_formats(config: &str) -> Vec<LogFormatDirective> {
    let mut formats = Vec::new();
    let mut tokens = Tokens(config);
    let mut is_statement_start = true;
    while let Some(token) = tokens.next() {
        if matches!(&token, Token::Sign(';' | '{' | '}')) {
            is_statement_start = true;
            continue;
        }
        let is_log_format = is_statement_start && token == Token::Word("log_format".to_owned());
        is_statement_start = false;
        if !is_log_format {
            continue;
        }
        let Some(Token::Word(name)) = tokens.next() else { continue };
        let mut format = LogFormatDirective { name, escape: Escape::Backslash, text: String::new() };
        while let Some(Token::Word(word)) = tokens.next() {
            match word.strip_prefix("escape=") {
                Some("none") if format.text.is_empty() => format.escape = Escape::None,
                Some(_) if format.text.is_empty() => {}
                _ => format.text.push_str(&word),
            }
        }
        is_statement_start = true;
        formats.push(format);
    }
    formats
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Sign(char),
}

/// Splits a configuration file into tokens.
struct Tokens<'c>(&'c str);

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        loop {
            self.0 = self.0.trim_start();
            match self.0.strip_prefix('#') {
                Some(comment) => self.0 = comment.split_once('\n').map_or("", |(_, rest)| rest),
                None => break,
            }
        }
        let mut characters = self.0.chars();
        let first = characters.next()?;
        if matches!(first, ';' | '{' | '}') {
            self.0 = characters.as_str();
            return Some(Token::Sign(first));
        }
        let quote = matches!(first, '"' | '\'').then_some(first);
        if quote.is_none() {
            characters = self.0.chars();
        }
        let mut word = String::new();
        loop {
            let before = characters.as_str();
            match characters.next() {
                None => break,
                Some('\\') => word.extend(characters.next().map(|escaped| match escaped {
                    't' => '\t',
                    'n' => '\n',
                    'r' => '\r',
                    other => other,
                })),
                Some(end) if Some(end) == quote => break,
                Some(end) if quote.is_none() && (end.is_whitespace() || matches!(end, ';' | '{' | '}')) => {
                    // `${name}` is one word.
                    if end == '{' && word.ends_with('$') {
                        word.push('{');
                        let rest = characters.as_str();
                        let (name, rest) = rest.split_once('}').unwrap_or((rest, ""));
                        word.push_str(name);
                        word.push('}');
                        characters = rest.chars();
                        continue;
                    }
                    characters = before.chars();
                    break;
                }
                Some(other) => word.push(other),
            }
        }
        self.0 = characters.as_str();
        Some(Token::Word(word))
    }
}

/// The variable with the addresses forwarded by proxies before this server.
pub(crate) const FORWARDED: &str = "http_x_forwarded_for";

/// The variable with those addresses plus the one that this server saw, at the end.
const ADDED_FORWARDED: &str = "proxy_add_x_forwarded_for";

/// Whether a variable has forwarded addresses, which are both a header and a client.
pub(crate) fn is_forwarded(variable: &str) -> bool {
    matches!(variable, FORWARDED | ADDED_FORWARDED)
}

const VARIABLES: &Columns = &[
    ("remote_addr", CLIENT, 1),
    ("proxy_protocol_addr", CLIENT, 2),
    (FORWARDED, CLIENT, 3),
    ("realip_remote_addr", CLIENT, 4),
    (ADDED_FORWARDED, CLIENT, 5),
    ("remote_user", USER, 1),
    ("msec", Field::End, 1),
    ("time_iso8601", Field::End, 2),
    ("time_local", Field::End, 3),
    ("request_time", Field::Duration(Unit::Seconds), 1),
    ("request", Field::Request, 2),
    ("request_method", METHOD, 1),
    ("request_uri", PATH, 1),
    ("uri document_uri", PATH, 3),
    ("http_host", HOST, 1),
    ("host", HOST, 2),
    ("server_name", HOST, 3),
    ("status", Field::Status, 1),
    ("body_bytes_sent", Field::Bytes, 1),
    ("bytes_sent", Field::Bytes, 2),
    ("http_referer", REFERER, 1),
    ("http_user_agent", USER_AGENT, 1),
];

/// The attribute for a variable with a request header: `header.x-tenant` for `http_x_tenant`.
fn header_attribute(variable: &str) -> Option<String> {
    let variable = if variable == ADDED_FORWARDED { FORWARDED } else { variable };
    let name = variable.strip_prefix("http_")?;
    Some(format!("header.{}", name.replace('_', "-").to_ascii_lowercase()))
}
