//! Server reflection, for tools such as grpcurl that have no .proto files.
//!
//! `descriptors.binpb` contains the descriptors that the crate envoy-types was generated from,
//! without comments and without files that the rate-limit service does not need. A test extracts
//! them again and compares.

use std::convert::Infallible;

use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request as HttpRequest, Response as HttpResponse};
use tokio::sync::OwnedSemaphorePermit;
use tonic::body::Body;
use tonic_reflection::server::Builder;
use tower::Service;

use super::{MAX_OTHER_MESSAGE_BYTES, SERVICE_NAME};

/// A `FileDescriptorSet` of `envoy/service/ratelimit/v3/rls.proto` and its imports.
pub(super) const DESCRIPTORS: &[u8] = include_bytes!("descriptors.binpb");

/// Maximum concurrent calls per connection; tools make one. Replies are far larger than requests,
/// so each call whose client does not read costs some 100 KiB.
pub(super) const MAX_CALLS: usize = 4;
/// The error above that limit.
pub(super) const TOO_MANY: &str =
    "too many concurrent calls of reflection: at most 4 on a connection; end one before the next";

/// A response that holds its permit until its body ends.
pub(super) fn hold(body: Body, permit: OwnedSemaphorePermit) -> Body {
    Body::new(body.map_frame(move |frame| {
        let _held = &permit;
        frame
    }))
}

/// A service that is called rarely.
pub(super) type BoxService =
    Box<dyn Fn(HttpRequest<Incoming>) -> BoxFuture<'static, HttpResponse<Body>> + Send + Sync>;

fn boxed<S>(service: S) -> BoxService
where
    S: Service<HttpRequest<Incoming>, Response = HttpResponse<Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move { service.call(request).await.unwrap_or_else(|never| match never {}) })
    })
}

/// Both versions of the service by path prefix, because many tools know only the older one.
pub(super) fn services() -> Vec<(&'static str, BoxService)> {
    let v1 = builder().build_v1().expect("the descriptors are a FileDescriptorSet");
    let v1alpha = builder().build_v1alpha().expect("the descriptors are a FileDescriptorSet");
    vec![
        (
            "/grpc.reflection.v1.ServerReflection/",
            boxed(v1.max_decoding_message_size(MAX_OTHER_MESSAGE_BYTES)),
        ),
        (
            "/grpc.reflection.v1alpha.ServerReflection/",
            boxed(v1alpha.max_decoding_message_size(MAX_OTHER_MESSAGE_BYTES)),
        ),
    ]
}

fn builder() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(SERVICE_NAME)
        .with_service_name("grpc.health.v1.Health")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;
    use std::process::Command;

    use prost::Message;
    use prost_types::{FileDescriptorProto, FileDescriptorSet};

    use super::*;

    /// The file that describes the service.
    const SERVICE_FILE: &str = "envoy/service/ratelimit/v3/rls.proto";

    /// The descriptors that envoy-types was generated from.
    fn everything() -> FileDescriptorSet {
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--offline",
                "--format-version=1",
                "--filter-platform",
                "x86_64-unknown-linux-gnu",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo starts");
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
        let packages = metadata["packages"].as_array().expect("there are packages");
        let types = packages.iter().find(|package| package["name"] == "envoy-types").expect("it is used");
        let manifest = PathBuf::from(types["manifest_path"].as_str().expect("a path"));
        let file = manifest.with_file_name("src").join("generated/types.bin");
        FileDescriptorSet::decode(&*std::fs::read(file).expect("it ships its descriptors"))
            .expect("they are that")
    }

    /// A file after its imports, without comments.
    fn needed(
        file: &str,
        from: &FileDescriptorSet,
        have: &mut BTreeSet<String>,
        into: &mut Vec<FileDescriptorProto>,
    ) {
        if !have.insert(file.to_owned()) {
            return;
        }
        let mut found = from.file.iter().find(|one| one.name() == file).expect("imports are there").clone();
        found.source_code_info = None;
        found.dependency.iter().for_each(|import| needed(import, from, have, into));
        into.push(found);
    }

    /// Reflection must describe the messages that this service uses. To extract the descriptors
    /// again, run this test with `WRITE_DESCRIPTORS=1`.
    #[test]
    fn the_descriptors_match_the_generated_types() {
        let mut file = Vec::new();
        needed(SERVICE_FILE, &everything(), &mut BTreeSet::new(), &mut file);
        let fresh = FileDescriptorSet { file }.encode_to_vec();
        if std::env::var_os("WRITE_DESCRIPTORS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire/grpc/descriptors.binpb");
            std::fs::write(path, &fresh).expect("the source can be written");
            return;
        }
        assert!(fresh == DESCRIPTORS, "WRITE_DESCRIPTORS=1 cargo test -p slidegate-server descriptors");
    }
}
