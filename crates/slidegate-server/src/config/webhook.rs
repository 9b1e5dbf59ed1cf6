//! The section `webhook`: where notifications are sent.
//!
//! The secret is one of Standard Webhooks. No error and no log shows it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lined_config::{Form, Section, only_if};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::Secret;
use slidegate_config::values::{Parsed, Text, form_of};

use super::store::secret_in;
use super::traces::http_url;

/// The prefix of a secret.
const PREFIX: &str = "whsec_";

/// Where notifications of policies with `notify` or `escalate` are sent, by `POST`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "{url: https://example.com/hooks, secret_file: /etc/slidegate/webhook}"))]
pub(super) struct WebhookSection {
    /// `http` or `https`; redirects are not followed. Certificates are verified against the system's CAs, or those in
    /// the file that `SSL_CERT_FILE` names. Default: required.
    #[serde(default)]
    #[schemars(extend("format" = "webhook-url", "default" = null))]
    url: String,
    /// The secret that messages are signed with. Default: required, or `secret_file`.
    secret: Option<Parsed<WebhookSecret>>,
    /// A file that holds the secret.
    #[schemars(with = "Option<String>", extend("format" = "webhook-secret-file"))]
    secret_file: Option<Parsed<WebhookSecret>>,
}

/// The webhook as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebhookSettings {
    pub(crate) url: String,
    /// The key of the signatures, 24 to 64 bytes.
    pub(crate) key: Secret<Vec<u8>>,
}

/// A secret: `whsec_` and 24 to 64 bytes in base64.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WebhookSecret(Secret<Vec<u8>>);

impl Text for WebhookSecret {
    const FORM: Form = form_of::<Self>(
        "webhook-secret",
        "`whsec_` and 24 to 64 random bytes in base64, for example the output of \
         `echo whsec_$(openssl rand -base64 32)`",
    )
    .secret();

    fn parse(text: &str) -> Result<Self, String> {
        let key = text.strip_prefix(PREFIX).and_then(|text| STANDARD.decode(text).ok());
        let key = key.filter(|key| (24..=64).contains(&key.len()));
        key.map(|key| Self(Secret::new(key))).ok_or_else(String::new)
    }
}

/// The form of secrets, for the schema.
pub(super) const SECRET: Form = WebhookSecret::FORM;

/// The path of a file with a secret. The text to keep is the secret.
pub(super) const SECRET_FILE: Form =
    Form::new("webhook-secret-file", "the path of a file", |path, _| secret_in::<WebhookSecret>(path))
        .secret();

/// The URL of a receiver.
pub(super) const URL: Form =
    Form::new("webhook-url", "the receiver's URL, for example `https://example.com/hooks`", |url, _| {
        if url.contains('@') {
            // The URL is not shown: a password may precede the `@`.
            return Err("contains a name or password; receivers verify the signature instead".to_owned());
        }
        only_if(http_url(url).is_some(), url)
    })
    .pattern("^https?://")
    .secret();

impl WebhookSection {
    /// The webhook. Reports mistakes and returns `None` if it is invalid.
    pub(super) fn build(self, section: &Section<'_>) -> Option<WebhookSettings> {
        if section.has("secret") && section.has("secret_file") {
            section.invalid("secret_file", "conflicts with secret; keep one");
        }
        if self.url.is_empty() && !section.has("url") {
            section.report("", format_args!("missing url: must be {}", URL.expected));
        }
        let secret = self.secret.or(self.secret_file);
        if secret.is_none() && !section.has("secret") && !section.has("secret_file") {
            section
                .report("", format_args!("missing secret: must be {}, or give secret_file", SECRET.expected));
        }
        Some(WebhookSettings { url: Some(self.url).filter(|url| !url.is_empty())?, key: secret?.0.0 })
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::parse;
    use slidegate_testkit::TempDir;

    const SECRET_TEXT: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// Receivers drop messages that are signed with another key.
    #[test]
    fn url_and_secret_arrive() {
        assert_eq!(parse("").observe.webhook, None);
        let said =
            parse(&format!("webhook: {{url: 'https://h/x?y=1', secret: {SECRET_TEXT}}}")).observe.webhook;
        let said = said.unwrap();
        assert_eq!((said.url.as_str(), said.key.expose().len()), ("https://h/x?y=1", 24));
        assert!(!format!("{said:?}").contains("MfKQ"), "{said:?}");
        let folder = TempDir::new("webhook");
        let file = folder.file("secret", format!("{SECRET_TEXT}\n"));
        let read =
            parse(&format!("webhook: {{url: 'https://h/x?y=1', secret_file: '{file}'}}")).observe.webhook;
        assert_eq!(read, Some(said));
    }
}
