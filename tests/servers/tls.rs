//! Certificates, made anew for each server.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

/// PEM files of an authority, of a server on the loopback, and of a client that it knows.
#[derive(Debug, Clone)]
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) server: PathBuf,
    pub(crate) server_key: PathBuf,
    pub(crate) client: PathBuf,
    pub(crate) client_key: PathBuf,
}

impl Certificates {
    /// Makes them in `directory`.
    pub(crate) fn make(directory: &Path) -> Certificates {
        let key = KeyPair::generate().expect("a key");
        let mut params = params("onefill test authority", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");

        let file = |name: &str, content: String| {
            let path = directory.join(name);
            fs::write(&path, content).expect("the directory is our own");
            path
        };
        let signed = |name: &str, hosts: &[&str]| {
            let key = KeyPair::generate().expect("a key");
            let mut params = self::params(name, hosts);
            // Strict clients look for it.
            params.use_authority_key_identifier_extension = true;
            let certificate = params.signed_by(&key, &authority).expect("a certificate");
            (
                file(&format!("{name}.crt"), certificate.pem()),
                file(&format!("{name}.key"), key.serialize_pem()),
            )
        };
        let (server, server_key) = signed("server", &["localhost", "127.0.0.1", "::1"]);
        let (client, client_key) = signed("client", &["client"]);
        let authority = file("authority.crt", authority.pem());
        Certificates { authority, server, server_key, client, client_key }
    }
}

fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts = hosts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut params = CertificateParams::new(hosts).expect("these are names of hosts");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
