//! Test certificates, valid from the distant past to the distant future.

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::temp_dir::TempDir;

/// A certificate authority that signs certificates.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub pem: String,
    /// The private key.
    pub key_pem: String,
}

impl Authority {
    /// An authority of this name. It trusts nobody else.
    pub fn new(name: &str) -> Self {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for these subject alternative names: DNS names or IP addresses.
    pub fn sign(&self, names: &[&str]) -> Certificate {
        self.sign_params(&params("signed", names))
    }

    /// A certificate for servers only, with these subject alternative names.
    pub fn sign_for_servers(&self, names: &[&str]) -> Certificate {
        let mut params = params("signed", names);
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        self.sign_params(&params)
    }

    fn sign_params(&self, params: &CertificateParams) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Certificate { pem, key_pem: key.serialize_pem() }
    }

    /// The authority's own certificate, in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }
}

impl Certificate {
    /// A self-signed certificate.
    pub fn self_signed(names: &[&str]) -> Self {
        let key = KeyPair::generate().unwrap();
        let pem = params("self-signed", names).self_signed(&key).unwrap().pem();
        Self { pem, key_pem: key.serialize_pem() }
    }

    /// Writes `NAME.crt` and `NAME.key` and returns their paths.
    pub fn write(&self, dir: &TempDir, name: &str) -> (String, String) {
        (dir.file(&format!("{name}.crt"), &self.pem), dir.file(&format!("{name}.key"), &self.key_pem))
    }
}

fn params(name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
