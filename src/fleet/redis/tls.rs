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
/// trusts or one that was added here. A certificate that says of itself that it is an authority is
/// none of a server's, not even if it was added: those that `openssl req -x509` makes are such, unless
/// told otherwise.
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::deadline::Deadline;
    use crate::fleet::redis::stub::Stub;
    use crate::fleet::redis::{Dial, Reply, Server};

    /// A certificate that signs itself, and its key.
    struct Identity {
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
        pem: (String, String),
    }

    fn identity(name: &str) -> Identity {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Identity {
            certificate: made.cert.der().clone(),
            key: PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into(),
            pem: (made.cert.pem(), made.signing_key.serialize_pem()),
        }
    }

    type Caller = StreamOwned<ServerConnection, TcpStream>;

    /// A server that shows this certificate, and wants that one, if any.
    fn stub(
        identity: &Identity,
        client: Option<&Identity>,
        serve: impl Fn(Caller) + Send + Sync + 'static,
    ) -> Stub {
        let provider = || Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = match client {
            None => config.with_no_client_auth(),
            Some(client) => {
                let mut roots = RootCertStore::empty();
                roots.add(client.certificate.clone()).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
                config.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = vec![identity.certificate.clone()];
        let config = config.with_single_cert(chain, identity.key.clone_key()).unwrap();
        let config = Arc::new(config);
        Stub::new(move |_, caller| {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            serve(StreamOwned::new(connection, caller.0));
        })
    }

    /// Answers each request with these bytes, a record for each.
    fn saying(records: &'static [&'static [u8]]) -> impl Fn(Caller) + Send + Sync + 'static {
        move |mut caller| {
            let mut request = [0; 1024];
            while caller.read(&mut request).is_ok_and(|len| len > 0) {
                for record in records {
                    caller.conn.writer().write_all(record).unwrap();
                }
                if caller.flush().is_err() {
                    break;
                }
            }
        }
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    fn trusting(identity: &Identity) -> TlsBuilder {
        Tls::new().only_added().authority_pem(identity.pem.0.as_bytes()).unwrap()
    }

    fn error(server: &Server) -> String {
        match server.dial(soon()) {
            Err(TierError::Unreachable(why)) => why,
            other => panic!("{:?}", other.map(drop)),
        }
    }

    #[test]
    fn replies_come_through() {
        let identity = identity("127.0.0.1");
        let stub = stub(&identity, None, saying(&[b"$5\r\nva", b"lue\r\n", b":300\r\n"]));
        let tls = trusting(&identity).build().unwrap();
        let server = stub.server().tls(tls);
        let mut wire = server.dial(soon()).unwrap();
        for _ in 0..3 {
            let replies = wire.call(&[&[b"GET", b"key"], &[b"PTTL", b"key"]], soon()).unwrap();
            assert_eq!(replies, [Reply::Bytes(b"value".to_vec()), Reply::Int(300)]);
        }
    }

    #[test]
    fn one_reply_too_many_is_the_end_of_a_connection() {
        let identity = identity("127.0.0.1");
        let stub = stub(&identity, None, saying(&[b":1\r\n", b":2\r\n"]));
        let server = stub.server().tls(trusting(&identity).build().unwrap());
        let mut wire = server.dial(soon()).unwrap();
        let error = wire.call(&[&[b"GET", b"key"]], soon()).unwrap_err();
        assert!(matches!(error, TierError::Garbled(_)), "{error}");
    }

    #[test]
    fn a_server_that_is_not_trusted_is_not_spoken_to() {
        let (right, wrong) = (identity("127.0.0.1"), identity("elsewhere"));
        let tls = trusting(&right).build().unwrap();

        let untrusted = stub(&wrong, None, saying(&[b":1\r\n"]));
        let why = error(&untrusted.server().tls(tls.clone()));
        assert!(why.contains("invalid peer certificate"), "{why}");

        let of_another_name = stub(&wrong, None, saying(&[b":1\r\n"]));
        let why = error(&of_another_name.server().tls(trusting(&wrong).build().unwrap()));
        assert!(why.contains("not valid for name"), "{why}");

        let plain = Stub::saying(b"-ERR Protocol error\r\n");
        let why = error(&plain.server().tls(tls));
        assert!(why.contains("corrupt message"), "{why}");
    }

    #[test]
    fn a_server_may_want_a_certificate_too() {
        let (server, client) = (identity("127.0.0.1"), identity("client"));
        let stub = stub(&server, Some(&client), saying(&[b"+OK\r\n"]));
        let (certificate, key) = (client.pem.0.as_bytes(), client.pem.1.as_bytes());
        let tls = trusting(&server).client_pem(certificate, key).unwrap();
        assert!(!format!("{tls:?}").contains("PRIVATE"));
        let known = stub.server().password("secret").tls(tls.build().unwrap());
        known.dial(soon()).unwrap();
        let unknown = stub.server().password("secret").tls(trusting(&server).build().unwrap());
        let why = error(&unknown);
        assert!(why.contains("CertificateRequired"), "{why}");
    }

    #[test]
    fn a_handshake_that_hangs_ends_by_the_deadline() {
        let hung = Stub::new(|_, mut caller| while caller.hear() {});
        let server = hung.server().tls(trusting(&identity("127.0.0.1")).build().unwrap());
        let deadline = Deadline::after(Duration::from_millis(50));
        let error = server.dial(deadline).err().unwrap();
        assert!(matches!(error, TierError::TooSlow { .. }), "{error}");
    }

    #[test]
    fn settings_that_mean_nothing_are_refused() {
        assert_eq!(Tls::new().authority_pem(b"").unwrap_err().field(), "authority_pem");
        assert_eq!(Tls::new().authority_der(b"x").unwrap_err().field(), "authority_der");
        assert_eq!(Tls::new().client_pem(b"", b"").unwrap_err().field(), "client_pem");
        assert_eq!(Tls::new().only_added().build().unwrap_err().field(), "tls");
        let (a, b) = (identity("a"), identity("b"));
        let mismatch = trusting(&a).client_pem(a.pem.0.as_bytes(), b.pem.1.as_bytes()).unwrap();
        assert_eq!(mismatch.build().unwrap_err().field(), "client_pem");
    }
}
