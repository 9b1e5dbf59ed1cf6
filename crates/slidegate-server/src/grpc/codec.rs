//! Calls of tonic with buffers as large as their messages.
//!
//! A response keeps its buffer until the client takes it: tonic's default of 8 KiB for each of 1024
//! calls would make a connection whose client grants no room cost 10 MB.

use std::marker::PhantomData;

use hyper::body::Incoming;
use hyper::{Request as HttpRequest, Response as HttpResponse};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec};
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};
use tower::service_fn;

use super::MAX_MESSAGE_BYTES;
use super::incomplete::MessageBody;

/// Initial size of the buffer of a request: most are smaller.
const REQUEST_BYTES: usize = 1024;
/// Initial size of the buffer of a response: most are smaller.
const RESPONSE_BYTES: usize = 256;

/// Decodes the message of a call, of so many bytes at most, answers it, and encodes the response.
pub(super) async fn unary<D, E, F>(
    request: HttpRequest<MessageBody<Incoming>>,
    max_bytes: usize,
    mut answer: impl FnMut(D) -> F,
) -> HttpResponse<Body>
where
    D: Message + Default + 'static,
    E: Message + 'static,
    F: Future<Output = Result<E, Status>>,
{
    let answer = service_fn(|request: Request<D>| {
        let answered = answer(request.into_inner());
        async move { answered.await.map(Response::new) }
    });
    grpc::<E, D>(max_bytes).unary(answer, request).await
}

/// tonic's implementation of a call, with these buffers and messages of so many bytes at most.
pub(super) fn grpc<E, D>(max_bytes: usize) -> Grpc<SmallCodec<E, D>>
where
    E: Message + 'static,
    D: Message + Default + 'static,
{
    Grpc::new(SmallCodec(PhantomData)).max_decoding_message_size(max_bytes)
}

/// The codec of tonic with smaller buffers.
pub(super) struct SmallCodec<E, D>(PhantomData<fn(D) -> E>);

impl<E, D> Codec for SmallCodec<E, D>
where
    E: Message + 'static,
    D: Message + Default + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = ProstEncoder<E>;
    type Decoder = ProstDecoder<D>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<E, D>::raw_encoder(BufferSettings::new(RESPONSE_BYTES, MAX_MESSAGE_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<E, D>::raw_decoder(BufferSettings::new(REQUEST_BYTES, MAX_MESSAGE_BYTES))
    }
}
