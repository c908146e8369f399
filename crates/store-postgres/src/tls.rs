//! TLS of the connections, by rustls: a certificate that cannot be verified ends the connection.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{
    Socket,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
};
use tokio_rustls::{TlsConnector, client};

use crate::address::Encryption;

/// Maker of encrypted connections; without a configuration it makes none.
#[derive(Clone)]
pub(crate) struct Tls(Option<Arc<ClientConfig>>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Tls(verified)" } else { "Tls(off)" })
    }
}

impl Tls {
    /// Prepares the encryption; the error is a sentence.
    pub(crate) fn new(encryption: &Encryption) -> Result<Self, String> {
        let Encryption::Verified(authorities) = encryption else { return Ok(Self(None)) };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = match authorities {
            None => builder.with_platform_verifier().map_err(|error| {
                format!("the system's certificate authorities cannot be read ({error}); name a file with sslrootcert=")
            })?,
            Some(file) => {
                let unread = |error: &dyn fmt::Display| format!("sslrootcert {} is unusable: {error}", file.display());
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unread(&error))? {
                    let certificate = certificate.map_err(|error| unread(&error))?;
                    roots.add(certificate).map_err(|error| unread(&error))?;
                }
                if roots.is_empty() {
                    return Err(unread(&"it holds no certificate"));
                }
                builder.with_root_certificates(roots)
            }
        };
        Ok(Self(Some(Arc::new(builder.with_no_client_auth()))))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake { config: self.0.clone(), host: host.to_owned() })
    }
}

/// Handshake to come with one host.
pub(crate) struct Handshake {
    config: Option<Arc<ClientConfig>>,
    host: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Encrypted>>;

    fn connect(self, socket: Socket) -> Self::Future {
        async move {
            let config = self.config.ok_or_else(|| io::Error::other("TLS is switched off"))?;
            let host = ServerName::try_from(self.host).map_err(io::Error::other)?;
            Ok(Encrypted(TlsConnector::from(config).connect(host, socket).await?))
        }
        .boxed()
    }
}

/// Encrypted connection.
pub(crate) struct Encrypted(client::TlsStream<Socket>);

impl TlsStream for Encrypted {
    /// Binds nothing: the certificate is verified.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
