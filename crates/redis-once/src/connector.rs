//! Connector: opens connections to one server and sends the greeting.
//!
//! If a server does not support RESP3, RESP2 is used from then on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::error_reply;
use crate::options::{Address, Credentials, InvalidOptions, Options};
use crate::reply_bound::AcceptedReplies;
use crate::stream::Opener;

/// Commands queued per connection; more than may be in flight, so no call waits for the queue.
const PIPELINE_BUFFER: usize = 4096;

/// The purpose of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    /// Keys and scripts.
    Keys,
    /// Finding the master.
    Sentinel,
}

/// Opens connections to one server.
pub struct Connector {
    opener: Opener,
    greeting: RedisConnectionInfo,
    resp2_only: AtomicBool,
    timeout: Duration,
    tls: bool,
}

/// An established connection.
pub(crate) struct Connected {
    pub(crate) stream: MultiplexedConnection,
    /// Bounds its replies.
    pub(crate) accepted: Arc<AcceptedReplies>,
    pub(crate) driver: Driver,
}

/// The task that writes calls and reads replies. Ends with the connection.
pub(crate) struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("opener", &self.opener).finish_non_exhaustive()
    }
}

impl Connector {
    /// # Errors
    /// Certificates that cannot be read.
    pub(crate) fn new(options: &Options, address: &Address, serves: Serves) -> Result<Self, InvalidOptions> {
        if options.ca_certificates.as_ref().is_some_and(|pem| !holds_certificate(&pem.0)) {
            return Err(InvalidOptions::new(
                "redis ca certificates hold no certificate; give PEM text that begins with `-----BEGIN CERTIFICATE-----`",
            ));
        }
        let opener = Opener::new(options, address).map_err(|error| {
            InvalidOptions::new(format!(
                "redis certificates cannot be used: {error}; give PEM text that begins with `-----BEGIN`"
            ))
        })?;
        Ok(Self {
            opener,
            greeting: greeting(options, serves),
            resp2_only: AtomicBool::new(options.resp2_only),
            timeout: options.connect_timeout(),
            tls: options.tls,
        })
    }

    /// Connects and authenticates. `lost` is called at most once, when the connection ends; over
    /// RESP2 it is not called, and the next call detects the loss.
    pub(crate) async fn connect(
        &self,
        lost: impl Fn() + Send + Sync + 'static,
    ) -> Result<Connected, RedisError> {
        let lost = Arc::new(lost);
        loop {
            let resp2 = self.resp2_only.load(Ordering::Relaxed);
            let mut config = AsyncConnectionConfig::new()
                // Each call has its own deadline.
                .set_response_timeout(None)
                .set_pipeline_buffer_size(PIPELINE_BUFFER);
            if !resp2 {
                let lost = lost.clone();
                config = config.set_push_sender(move |push: PushInfo| -> Result<(), ()> {
                    if push.kind == PushKind::Disconnection {
                        lost();
                    }
                    Ok(())
                });
            }
            match within(self.timeout, self.connect_with(config)).await {
                Err(error) if !resp2 && error_reply::lacks_resp3(&error) => {
                    self.resp2_only.store(true, Ordering::Relaxed);
                }
                answer => return answer,
            }
        }
    }

    async fn connect_with(&self, config: AsyncConnectionConfig) -> Result<Connected, RedisError> {
        let accepted = Arc::<AcceptedReplies>::default();
        let stream = self.opener.open(Arc::clone(&accepted)).await?;
        let greeted = MultiplexedConnection::new_with_config(&self.greeting(), stream, config).await;
        // Otherwise it would be reported as a lost connection.
        let (stream, driver) = greeted.map_err(|error| match accepted.refused() {
            Some(refused) => (ErrorKind::Parse, "greeting", refused.to_owned()).into(),
            None => error,
        })?;
        let driver = Driver(tokio::spawn(driver).abort_handle());
        Ok(Connected { stream, accepted, driver })
    }

    fn greeting(&self) -> RedisConnectionInfo {
        let is_resp2 = self.resp2_only.load(Ordering::Relaxed);
        let protocol = if is_resp2 { ProtocolVersion::RESP2 } else { ProtocolVersion::RESP3 };
        self.greeting.clone().set_protocol(protocol)
    }
}

impl Connector {
    /// Advice for a failed connection attempt whose cause is not obvious.
    pub(crate) fn hint(&self, error: &RedisError) -> Option<&'static str> {
        let silent = (self.tls && error.is_timeout()).then_some(
            "if the server is well, it does not speak TLS at this address: use its `tls-port`, or a url without TLS",
        );
        error_reply::tls_hint(&error_reply::error_text(error)).or(silent)
    }

    /// A connection for pub/sub messages.
    ///
    /// # Errors
    /// If the server cannot be reached within the connect timeout, or refuses the user.
    pub async fn subscription(&self) -> Result<PubSub, RedisError> {
        within(self.timeout, async {
            let stream = self.opener.open(Arc::default()).await?;
            PubSub::new(&self.greeting(), stream).await
        })
        .await
    }
}

async fn within<T>(
    time: Duration,
    attempt: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    timeout(time, attempt).await.unwrap_or_else(|late| Err(io::Error::from(late).into()))
}

/// The commands sent first on each connection, apart from the protocol.
fn greeting(options: &Options, serves: Serves) -> RedisConnectionInfo {
    let Credentials { user, password } = match serves {
        Serves::Keys => &options.credentials,
        Serves::Sentinel => &options.sentinel_credentials,
    };
    let mut greeting =
        RedisConnectionInfo::default().set_lib_name(options.application.name, options.application.version);
    if let Some(user) = user {
        greeting = greeting.set_username(user);
    }
    if let Some(password) = password {
        greeting = greeting.set_password(password);
    }
    match serves {
        Serves::Keys => greeting.set_db(options.database.into()),
        Serves::Sentinel => greeting,
    }
}

/// Whether the text has a certificate. rustls treats any other text as an empty list and then
/// trusts nobody.
fn holds_certificate(pem: &[u8]) -> bool {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    pem.windows(BEGIN.len()).any(|window| window == BEGIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Pem;

    /// A file of the wrong kind must fail at start, not at the first connection.
    #[test]
    fn certificates_that_are_none_are_refused() {
        let address = Address::Tcp { host: "h".to_owned(), port: 1 };
        let ca_certificates = Some(Pem(b"no pem".to_vec()));
        let options = Options { ca_certificates, ..Options::from_url("rediss://h:1").unwrap() };
        let error = Connector::new(&options, &address, Serves::Keys).err().unwrap();
        assert_eq!(
            error.to_string(),
            "redis ca certificates hold no certificate; give PEM text that begins with `-----BEGIN CERTIFICATE-----`"
        );
    }
}
