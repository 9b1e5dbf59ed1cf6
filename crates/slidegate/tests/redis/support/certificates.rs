//! Certificates for tests, made by the program openssl.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::run;

/// An authority, and what it signs.
pub(crate) struct Authority {
    dir: PathBuf,
    name: &'static str,
}

/// A certificate and its key, as files and as text.
pub(crate) struct Signed {
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    /// An authority of this name, whose files lie in `dir`.
    pub(crate) fn create(dir: &Path, name: &'static str) -> Self {
        let authority = Self { dir: dir.to_owned(), name };
        openssl(
            &[
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
                "-subj",
            ],
            &[&format!("/CN={name}"), "-keyout", &authority.file("key"), "-out", &authority.file("crt")],
        );
        authority
    }

    /// A certificate for this subject alternative name, such as `IP:127.0.0.1` or `DNS:localhost`.
    pub(crate) fn sign(&self, file: &str, subject: &str) -> Signed {
        let path = |end: &str| self.dir.join(format!("{}-{file}.{end}", self.name));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (request, key, certificate) = (path("csr"), path("key"), path("crt"));
        openssl(
            &[
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-subj",
                "/CN=x",
                "-addext",
            ],
            &[&format!("subjectAltName={subject}"), "-keyout", &text(&key), "-out", &text(&request)],
        );
        openssl(
            &[
                "x509",
                "-req",
                "-days",
                "2",
                "-copy_extensions",
                "copy",
                "-CAcreateserial",
                "-in",
                &text(&request),
            ],
            &["-CA", &self.file("crt"), "-CAkey", &self.file("key"), "-out", &text(&certificate)],
        );
        Signed { certificate, key }
    }

    /// The authority's own certificate.
    pub(crate) fn pem(&self) -> Vec<u8> {
        std::fs::read(self.file("crt")).unwrap()
    }

    /// Where that lies.
    pub(crate) fn path(&self) -> String {
        self.file("crt")
    }

    fn file(&self, end: &str) -> String {
        self.dir.join(format!("{}.{end}", self.name)).to_str().unwrap().to_owned()
    }
}

impl Signed {
    pub(crate) fn certificate_pem(&self) -> Vec<u8> {
        std::fs::read(&self.certificate).unwrap()
    }

    pub(crate) fn key_pem(&self) -> Vec<u8> {
        std::fs::read(&self.key).unwrap()
    }

    pub(crate) fn certificate_path(&self) -> String {
        self.certificate.to_str().unwrap().to_owned()
    }

    pub(crate) fn key_path(&self) -> String {
        self.key.to_str().unwrap().to_owned()
    }
}

fn openssl(args: &[&str], more: &[&str]) {
    let mut command = Command::new("openssl");
    command.args(args).args(more);
    run(command, "openssl");
}
