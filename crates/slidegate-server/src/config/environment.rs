//! What the command line and the environment say about settings that a file may have as well. They win over the file.

use std::net::SocketAddr;

use slidegate::{RedisOptions, Secret};

use super::ConfigErrors;
use super::admin::{self, Token};
use super::resp::{Password, Resp};
use super::store::{DEFAULT_DEADLINE, SharedStore};
use super::traces::OutsideTraces;
use super::values::Text;

/// The variable with the store's URL.
pub(super) const URL_VARIABLE: &str = "SLIDEGATE_REDIS";
/// The variable with the secret that ids are hashed with.
const SECRET_VARIABLE: &str = "SLIDEGATE_KEY_SECRET";
/// The variable with the password of the RESP port.
const PASSWORD_VARIABLE: &str = "SLIDEGATE_RESP_PASSWORD";

/// What the command line and the environment say.
#[derive(Default, Clone)]
pub(crate) struct Outside {
    pub(super) redis: Option<RedisOptions>,
    pub(super) key_secret: Option<Secret<String>>,
    pub(super) tokens: Vec<Token>,
    /// Where Envoy's rate-limit service listens.
    pub(super) grpc: Option<SocketAddr>,
    /// Whether that is said elsewhere, such as in another program's environment.
    pub(super) has_other_grpc: bool,
    /// Where the RESP port listens.
    pub(super) resp: Option<SocketAddr>,
    pub(super) resp_password: Option<Password>,
    pub(super) traces: OutsideTraces,
    /// Whether there are limits besides the file's, so that it may have no policies.
    pub(super) has_other_limits: bool,
}

/// What the command line says about the store and about listeners that a file may have as well.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    /// The URL of the store.
    pub(crate) redis: Option<&'a str>,
    /// Where Envoy's rate-limit service listens.
    pub(crate) grpc: Option<SocketAddr>,
    /// Whether that is said elsewhere, such as in another program's environment.
    pub(crate) has_other_grpc: bool,
    /// Where the RESP port listens.
    pub(crate) resp: Option<SocketAddr>,
}

impl Outside {
    /// Reads the environment. The command line wins over it.
    pub(crate) fn read(arguments: Arguments<'_>) -> Result<Self, ConfigErrors> {
        let Arguments { redis, grpc, has_other_grpc, resp } = arguments;
        let variable = |name: &str| match std::env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(ConfigErrors::one(name, None, "invalid encoding: the variable must be UTF-8"))
            }
        };
        let redis = match redis {
            Some(url) => Some(("--redis", url.to_owned())),
            None => variable(URL_VARIABLE)?.map(|url| (URL_VARIABLE, url)),
        };
        let options = |(place, url): (&str, String)| {
            RedisOptions::new(&url).map_err(|error| ConfigErrors::one(place, None, &error.to_string()))
        };
        let tokens =
            variable(admin::TOKENS_VARIABLE)?.map(|value| admin::from_variable(&value)).transpose()?;
        let password = |text: String| {
            let invalid = || format!("invalid password: must be {}", Password::EXPECTED);
            Password::parse(&text).map_err(|_| ConfigErrors::one(PASSWORD_VARIABLE, None, &invalid()))
        };
        Ok(Self {
            redis: redis.map(options).transpose()?,
            key_secret: variable(SECRET_VARIABLE)?.map(Secret::new),
            tokens: tokens.unwrap_or_default(),
            grpc,
            has_other_grpc,
            resp,
            resp_password: variable(PASSWORD_VARIABLE)?.map(password).transpose()?,
            traces: OutsideTraces::read(variable)?,
            has_other_limits: false,
        })
    }

    /// The RESP port without a section of the file.
    pub(super) fn resp(&self) -> Option<Resp> {
        self.resp.map(|listen| Resp::at(listen, self.resp_password.clone()))
    }

    /// The store without a section of the file.
    pub(super) fn store(&self) -> Option<SharedStore> {
        let options = self.redis.clone()?;
        let options = match &self.key_secret {
            Some(secret) => options.key_secret(secret.expose()),
            None => options,
        };
        Some(SharedStore { options, deadline: DEFAULT_DEADLINE, instances: 1 })
    }
}
