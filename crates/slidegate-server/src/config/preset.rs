//! Policies for usual cases, so that nobody has to write a file at first.

use clap::ValueEnum;

/// A config file of the package, in `presets/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// Requests by user, and by address without a user
    Api,
    /// Login attempts by address, and by user and address
    Login,
    /// Tokens, requests and open streams by user
    Llm,
    /// A site behind nginx, Caddy or Traefik, by address
    Proxy,
}

impl Preset {
    /// The name, and the text of the file.
    pub(crate) fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Api => ("api", include_str!("presets/api.yaml")),
            Self::Login => ("login", include_str!("presets/login.yaml")),
            Self::Llm => ("llm", include_str!("presets/llm.yaml")),
            Self::Proxy => ("proxy", include_str!("presets/proxy.yaml")),
        }
    }
}
