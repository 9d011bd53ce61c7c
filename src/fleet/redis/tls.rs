//! [`Tls`]: encryption, by rustls.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::stream::{Budget, Raw, Stream};
use crate::error::{BuildError, TierError};

/// A stream that is encrypted.
pub(super) type Encrypted = StreamOwned<ClientConnection, Raw>;

/// Whether a record was decrypted that nobody has read, or could be if anybody tried.
pub(super) fn has_more(stream: &mut Encrypted) -> bool {
    // An error is one of the next read.
    stream.conn.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
}

/// How connections are encrypted, and which servers are trusted.
///
/// TLS 1.3 or 1.2, by rustls with the provider `ring`, whatever others the application uses. The
/// server must have a certificate for the name it is reached by, from an authority that the system
/// trusts or one that was added here.
///
/// ```no_run
/// use onefill::fleet::redis::{Server, Tls};
///
/// let tls = Tls::new().authority_pem(&std::fs::read("/etc/ssl/cache-ca.pem")?)?.build()?;
/// let server = Server::tcp("cache.internal", 6380).tls(tls);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tls(Arc<ClientConfig>);

/// Settings of a [`Tls`], from [`Tls::new`].
pub struct TlsBuilder {
    roots: RootCertStore,
    only_added: bool,
    client: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl Tls {
    /// With the authorities that the system trusts, unless [told otherwise](TlsBuilder::only_added).
    #[allow(clippy::new_ret_no_self, reason = "a builder is where every use of it begins")]
    pub fn new() -> TlsBuilder {
        TlsBuilder { roots: RootCertStore::empty(), only_added: false, client: None }
    }

    /// Encrypts a connection to the server of that name or address.
    pub(super) fn wrap(
        &self,
        raw: Raw,
        host: &str,
        peer: &str,
        budget: Budget,
    ) -> Result<Stream, TierError> {
        let failed = |error: &dyn fmt::Display| TierError::Unreachable(format!("{peer}: {error}"));
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
        let connection =
            ClientConnection::new(Arc::clone(&self.0), name).map_err(|error| failed(&error))?;
        let mut stream = StreamOwned::new(connection, raw);
        // Now, so that a certificate that is not trusted is no failure of a command.
        while stream.conn.is_handshaking() {
            stream
                .conn
                .complete_io(&mut stream.sock)
                .map_err(|error| budget.failed(peer, &error))?;
        }
        Ok(Stream::Tls(Box::new(stream)))
    }
}

impl TlsBuilder {
    /// Trusts the authorities in a PEM file, too: all of the certificates there.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if there is none, or one that cannot be used.
    pub fn authority_pem(mut self, pem: &[u8]) -> Result<TlsBuilder, BuildError> {
        for certificate in certificates(pem, "authority_pem")? {
            self = self.add("authority_pem", certificate)?;
        }
        Ok(self)
    }

    /// Trusts an authority, given as a DER certificate, too.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if it cannot be used.
    pub fn authority_der(self, der: &[u8]) -> Result<TlsBuilder, BuildError> {
        self.add("authority_der", CertificateDer::from(der.to_vec()))
    }

    fn add(
        mut self,
        field: &'static str,
        certificate: CertificateDer<'static>,
    ) -> Result<TlsBuilder, BuildError> {
        match self.roots.add(certificate) {
            Ok(()) => Ok(self),
            Err(error) => Err(wrong(field, &error, "a certificate of an authority")),
        }
    }

    /// Trusts the authorities that were added, and not those that the system trusts.
    #[must_use]
    pub fn only_added(mut self) -> TlsBuilder {
        self.only_added = true;
        self
    }

    /// Shows a certificate to the server, which may ask for one: a PEM file with it and those it
    /// was signed with, and one with its key.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if there is no certificate, or no key.
    pub fn client_pem(mut self, certificate: &[u8], key: &[u8]) -> Result<TlsBuilder, BuildError> {
        let chain = certificates(certificate, "client_pem")?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| wrong("client_pem", &error, "a certificate and its key"))?;
        self.client = Some((chain, key));
        Ok(self)
    }

    /// What was set.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if nobody is trusted, or the client's key does not fit its certificate.
    pub fn build(self) -> Result<Tls, BuildError> {
        let TlsBuilder { mut roots, only_added, client } = self;
        if !only_added {
            // Some of the system's may be damaged, or be missing: what counts is what is left.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if roots.is_empty() {
            let found = "no certificate, neither the system's nor one that was added";
            return Err(wrong("tls", &found, "told whom to trust"));
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong("tls", &error, "able to use its protocols"))?
            .with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some((chain, key)) => config
                .with_client_auth_cert(chain, key)
                .map_err(|error| wrong("client_pem", &error, "a certificate and its key"))?,
        };
        Ok(Tls(Arc::new(config)))
    }
}

fn certificates(
    pem: &[u8],
    field: &'static str,
) -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| wrong(field, &error, "a PEM file with certificates"))?;
    if certificates.is_empty() {
        return Err(wrong(field, &"without a certificate", "a PEM file with certificates"));
    }
    Ok(certificates)
}

fn wrong(field: &'static str, found: &dyn fmt::Display, allowed: &'static str) -> BuildError {
    BuildError::new(field, format_args!("{found}"), allowed)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Without the key.
impl fmt::Debug for TlsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsBuilder")
            .field("added", &self.roots.len())
            .field("only_added", &self.only_added)
            .field("client", &self.client.is_some())
            .finish()
    }
}
