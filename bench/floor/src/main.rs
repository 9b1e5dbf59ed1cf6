//! An HTTP server that replies to every request as `POST /v1/check` does, and decides nothing: what
//! the service costs besides is its own. One thread per processor, each with a socket and a
//! runtime, and the settings of hyper are those of the service.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;
use tokio::runtime::Builder;

/// As long as that of a check.
const REPLY: &str = r#"{"allowed":true,"policy":"per-user","key":"user-0000000","why":"per-user: `user-0000000` has used 1 of 1000000000 per 1h, 999999999 remain","limit":1000000000,"used":1,"remaining":999999999,"cost":1,"retry_after_ms":0,"reset_after_ms":1,"source":"store","policies":[{"policy":"per-user","key":"user-0000000","allowed":true,"enforced":true,"limit":1000000000,"window_ms":3600000,"used":1,"remaining":999999999,"cost":1,"retry_after_ms":0,"reset_after_ms":1,"source":"store"}]}"#;
/// Its headers.
const HEADERS: [(HeaderName, HeaderValue); 7] = [
    (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        HeaderName::from_static("ratelimit-policy"),
        HeaderValue::from_static("\"per-user\";q=1000000000;w=3600"),
    ),
    (HeaderName::from_static("ratelimit"), HeaderValue::from_static("\"per-user\";r=999999999;t=1")),
    (HeaderName::from_static("x-ratelimit-limit"), HeaderValue::from_static("1000000000")),
    (HeaderName::from_static("x-ratelimit-remaining"), HeaderValue::from_static("999999999")),
    (HeaderName::from_static("x-ratelimit-reset"), HeaderValue::from_static("1795460321")),
];
/// Maximum size of a request head.
const MAX_HEADER_BYTES: usize = 64 * 1024;

fn main() -> std::io::Result<()> {
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut threads = Vec::new();
    for _ in 0..thread::available_parallelism()?.get() {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseport(true)?;
        socket.set_nodelay(true)?;
        socket.bind(address)?;
        address = socket.local_addr()?;
        threads.push(thread::spawn(|| serve(socket)));
    }
    println!("listening  http://{address}\ntry        ending it with a signal");
    for thread in threads {
        thread.join().expect("it does not panic")?;
    }
    Ok(())
}

/// Accepts and serves connections on this thread.
fn serve(socket: TcpSocket) -> std::io::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = socket.listen(1024)?;
        loop {
            let (stream, _) = listener.accept().await?;
            let connection = hyper::server::conn::http1::Builder::new()
                .header_read_timeout(None)
                .writev(false)
                .max_buf_size(MAX_HEADER_BYTES)
                .serve_connection(TokioIo::new(stream), service_fn(reply));
            tokio::spawn(async move { drop(connection.await) });
        }
    })
}

async fn reply(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    // A client that is gone gets no reply anyway.
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::new(Bytes::from_static(REPLY.as_bytes())));
    response.headers_mut().extend(HEADERS);
    Ok(response)
}
