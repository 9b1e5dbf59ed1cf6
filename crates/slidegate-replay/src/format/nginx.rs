//! nginx: a `log_format`, as text or from a configuration file, and what its variables mean.

use crate::block::{Escape, Text};
use crate::format::field::{Field, Target};
use crate::format::template::Piece;
use crate::format::time::Unit;

/// ingress-nginx's default.
pub(crate) const INGRESS: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
     \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_upstream_name] \
     [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time \
     $upstream_status $req_id";

/// Reads a format's text: `$name`, `${name}` and literals.
pub(crate) fn pieces(format: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = format;
    while let Some(dollar) = rest.find('$') {
        literal.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        let (name, after) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, after)) => (name, after),
            None => after.split_at(name_length(after)),
        };
        if name.is_empty() || name_length(name) != name.len() {
            literal.push('$');
            rest = &rest[dollar + 1..];
            continue;
        }
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        pieces.push(Piece::Variable(name.to_owned()));
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    pieces
}

fn name_length(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
}

/// A `log_format` directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogFormat {
    pub(crate) name: String,
    pub(crate) escape: Escape,
    pub(crate) text: String,
}

/// The `log_format` directives of a configuration file, in its order.
pub(crate) fn log_formats(config: &str) -> Vec<LogFormat> {
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
        let mut format = LogFormat { name, escape: Escape::Backslash, text: String::new() };
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

/// The tokens of a configuration file.
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

/// The variable with the addresses that proxies before this server forwarded.
pub(crate) const FORWARDED: &str = "http_x_forwarded_for";

/// What a variable means; `None` for those that decide nothing.
pub(crate) fn target(variable: &str) -> Option<Target> {
    let (field, rank) = match variable {
        "remote_addr" => (Field::Text(Text::Client), 1),
        "proxy_protocol_addr" => (Field::Text(Text::Client), 2),
        FORWARDED => (Field::Text(Text::Client), 3),
        "realip_remote_addr" => (Field::Text(Text::Client), 4),
        "remote_user" => (Field::Text(Text::User), 1),
        "time_iso8601" => (Field::End, 2),
        "time_local" => (Field::End, 3),
        "msec" => (Field::End, 1),
        "request_time" => (Field::Duration(Unit::Seconds), 1),
        "request" => (Field::Request, 2),
        "request_method" => (Field::Text(Text::Method), 1),
        "request_uri" => (Field::Text(Text::Target), 1),
        "uri" | "document_uri" => (Field::Text(Text::Target), 3),
        "server_protocol" => (Field::Text(Text::Protocol), 1),
        "http_host" => (Field::Text(Text::Host), 1),
        "host" => (Field::Text(Text::Host), 2),
        "server_name" => (Field::Text(Text::Host), 3),
        "status" => (Field::Status, 1),
        "body_bytes_sent" => (Field::Bytes, 1),
        "bytes_sent" => (Field::Bytes, 2),
        "http_referer" => (Field::Text(Text::Referer), 1),
        "http_user_agent" => (Field::Text(Text::UserAgent), 1),
        _ => return None,
    };
    Some(Target::of_format(field, rank))
}

/// The attribute of a variable that has a request header: `header.x-tenant` of `http_x_tenant`.
pub(crate) fn header_attribute(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("http_")?;
    Some(format!("header.{}", name.replace('_', "-").to_ascii_lowercase()))
}
