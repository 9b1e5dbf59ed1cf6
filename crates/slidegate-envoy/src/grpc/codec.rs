//! Unary calls with buffers as large as their messages.
//!
//! A response keeps its buffer until the client takes it: tonic's default of 8 KiB for each of 1024
//! calls would make a connection whose client grants no room cost 10 MB.

use std::marker::PhantomData;

use hyper::body::Incoming;
use hyper::{Request, Response};
use prost::Message;
use prost::bytes::{Buf, BufMut};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, UnaryService};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use super::MAX_MESSAGE_BYTES;
use super::incomplete::MessageBody;
use crate::message::{CallMessage, EncodedResponse};

/// Initial size of the buffer of a request: most are smaller.
const REQUEST_BYTES: usize = 1024;
/// Initial size of the buffer of a response: most are smaller.
const RESPONSE_BYTES: usize = 256;

/// Decodes the message of a call, handles it, and encodes the response.
pub(super) async fn unary<S, D>(service: S, request: Request<MessageBody<Incoming>>) -> Response<Body>
where
    S: UnaryService<D, Response: Message + 'static>,
    D: Message + Default + 'static,
{
    grpc::<S::Response, D>().unary(service, request).await
}

/// The same for calls that decide.
pub(super) async fn rate_limit<S>(service: S, request: Request<MessageBody<Incoming>>) -> Response<Body>
where
    S: UnaryService<CallMessage, Response = EncodedResponse>,
{
    let mut grpc = Grpc::new(RateLimitCodec).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.unary(service, request).await
}

/// tonic's implementation of a call, with these buffers.
pub(super) fn grpc<E, D>() -> Grpc<SmallCodec<E, D>>
where
    E: Message + 'static,
    D: Message + Default + 'static,
{
    Grpc::new(SmallCodec(PhantomData)).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// The codec of tonic with smaller buffers.
pub(super) struct SmallCodec<E, D>(PhantomData<fn(D) -> E>);

impl<E, D> Codec for SmallCodec<E, D>
where
    E: Message + Send + 'static,
    D: Message + Default + Send + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = ProstEncoder<E>;
    type Decoder = ProstDecoder<D>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<E, D>::raw_encoder(response_buffer())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<E, D>::raw_decoder(request_buffer())
    }
}

/// The codec of calls that decide.
struct RateLimitCodec;

impl Codec for RateLimitCodec {
    type Encode = EncodedResponse;
    type Decode = CallMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RateLimitCodec {
    type Item = EncodedResponse;
    type Error = Status;

    fn encode(&mut self, response: EncodedResponse, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&response.0);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        response_buffer()
    }
}

impl Decoder for RateLimitCodec {
    type Item = CallMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<CallMessage>, Status> {
        let length = from.remaining();
        let decoded = match from.chunk() {
            whole if whole.len() == length => CallMessage::decode(whole),
            _ => CallMessage::decode(&from.copy_to_bytes(length)),
        };
        from.advance(from.remaining());
        // As tonic's codec reports it.
        decoded.map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        request_buffer()
    }
}

fn request_buffer() -> BufferSettings {
    BufferSettings::new(REQUEST_BYTES, MAX_MESSAGE_BYTES)
}

fn response_buffer() -> BufferSettings {
    BufferSettings::new(RESPONSE_BYTES, MAX_MESSAGE_BYTES)
}
