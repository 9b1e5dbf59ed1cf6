//! tonic calls with buffers as small as their messages.
//!
//! A response keeps its buffer until the client takes it. With tonic's default of 8 KiB, a
//! connection with 1024 calls whose client grants no room would cost 10 MB.

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

/// Initial size of a request buffer: most requests are smaller.
const REQUEST_BYTES: usize = 1024;
/// Initial size of a response buffer: most responses are smaller.
const RESPONSE_BYTES: usize = 256;

/// Decodes a call's message of at most `max_bytes`, answers it, and encodes the response.
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

/// tonic's handler of a call, with these buffers and messages of at most `max_bytes`.
pub(super) fn grpc<E, D>(max_bytes: usize) -> Grpc<SmallCodec<E, D>>
where
    E: Message + 'static,
    D: Message + Default + 'static,
{
    Grpc::new(SmallCodec(PhantomData)).max_decoding_message_size(max_bytes)
}

/// tonic's codec with smaller buffers.
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
