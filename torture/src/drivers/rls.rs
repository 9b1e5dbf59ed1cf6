//! Targets that are asked as Envoy asks its `RateLimitService`.
//!
//! The messages have the fields that are used here, with the numbers of `envoy/service/ratelimit/v3/rls.proto`.

use std::time::{Duration, Instant};

use prost::Message;
use tonic::transport::{Channel, Endpoint};

use crate::Failed;
use crate::judge::Answer;
use crate::target::{Rls, filled};

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<Until>,
}

#[derive(Clone, PartialEq, Message)]
struct Until {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

pub(super) struct Client {
    channel: Channel,
    form: Rls,
}

impl Client {
    pub(super) async fn new(form: &Rls, port: u16) -> Result<Self, Failed> {
        let channel = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?.connect().await?;
        Ok(Self { channel, form: form.clone() })
    }

    pub(super) async fn ask(&self, key: &str, cost: u64) -> (Instant, Answer) {
        let entry =
            |(name, value): &(String, String)| Entry { key: name.clone(), value: filled(value, key, cost) };
        let request = Request {
            domain: self.form.domain.clone(),
            descriptors: vec![Descriptor { entries: self.form.entries.iter().map(entry).collect() }],
            hits_addend: u32::try_from(cost).unwrap_or(u32::MAX),
        };
        let response = self.call(request).await;
        let answered = Instant::now();
        let answer = response.map_or_else(Answer::Failed, |response| match response.overall_code {
            OK => Answer::Admitted,
            OVER_LIMIT => {
                let waits = response.statuses.iter().filter(|status| status.code == OVER_LIMIT);
                let waits = waits.filter_map(|status| status.duration_until_reset.as_ref()?.duration());
                Answer::Denied(waits.max())
            }
            other => Answer::Failed(format!("overall code {other}")),
        });
        (answered, answer)
    }

    async fn call(&self, request: Request) -> Result<Response, String> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.map_err(|error| error.to_string())?;
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        );
        let codec = tonic_prost::ProstCodec::<Request, Response>::default();
        let response = client.unary(tonic::Request::new(request), path, codec).await;
        response.map(tonic::Response::into_inner).map_err(|status| status.to_string())
    }
}

impl Until {
    fn duration(&self) -> Option<Duration> {
        Some(Duration::new(u64::try_from(self.seconds).ok()?, u32::try_from(self.nanos).ok()?))
    }
}
