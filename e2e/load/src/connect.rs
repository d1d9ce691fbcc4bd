//! Connections: plain and TLS, and what their failures mean.

use crate::config::{Config, ConfigError, Protocol, Trust, Unit};
use crate::report::{Failure, Loss};
use rustix::net::RecvFlags;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A connection.
pub(crate) enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    /// Whether nothing came in while the connection was idle. The kernel is asked, not the runtime, which may not
    /// have been told yet: a close that has arrived must not be mistaken for a lost request.
    pub(crate) fn is_quiet(&self) -> bool {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        };
        let mut byte = [0_u8; 1];
        matches!(rustix::net::recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Err(rustix::io::Errno::AGAIN))
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Makes connections as the configuration says.
pub(crate) struct Connector {
    tls: Option<TlsConnector>,
    receive_buffer: Option<u32>,
}

/// What the kernel may keep of a slow download, in bytes: much more, and the sender would be done long before the reader.
const SLOW_RECEIVE_BUFFER: u32 = 64 * 1024;

impl Connector {
    pub(crate) fn new(config: &Config) -> Result<Self, ConfigError> {
        let receive_buffer = matches!(config.unit, Unit::Download { .. }).then_some(SLOW_RECEIVE_BUFFER);
        let Some(tls) = &config.tls else { return Ok(Self { tls: None, receive_buffer }) };
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| ConfigError::Tls(error.to_string()))?;
        let mut client = match &tls.trust {
            Trust::Pem(pem) => builder.with_root_certificates(roots(pem)?).with_no_client_auth(),
            Trust::Anything => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnything(provider))).with_no_client_auth()
            }
        };
        client.alpn_protocols = vec![match config.protocol {
            Protocol::Http2 => b"h2".to_vec(),
            Protocol::Http1Close | Protocol::Http1KeepAlive | Protocol::TlsHandshakes => b"http/1.1".to_vec(),
        }];
        if config.protocol == Protocol::TlsHandshakes {
            client.resumption = Resumption::disabled();
        }
        Ok(Self { tls: Some(TlsConnector::from(Arc::new(client))), receive_buffer })
    }

    pub(crate) async fn connect(&self, address: SocketAddr, name: Option<&ServerName<'static>>) -> Result<Io, Failure> {
        let socket = self.connect_tcp(address).await.map_err(|error| not_connected(&error))?;
        match (&self.tls, name) {
            (Some(tls), Some(name)) => match tls.connect(name.clone(), socket).await {
                Ok(stream) => Ok(Io::Tls(Box::new(stream))),
                Err(error) => Err(no_handshake(&error)),
            },
            _ => Ok(Io::Plain(socket)),
        }
    }

    async fn connect_tcp(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| ConfigError::Tls(format!("trusted certificates: {error}")))?;
        store.add(certificate).map_err(|error| ConfigError::Tls(format!("trusted certificates: {error}")))?;
    }
    if store.is_empty() { Err(ConfigError::Tls("trusted certificates: there is none in the PEM".into())) } else { Ok(store) }
}

fn not_connected(error: &io::Error) -> Failure {
    use rustix::io::Errno;
    let local = [Errno::ADDRNOTAVAIL, Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let loss = match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected => {
            Loss::Reset
        }
        io::ErrorKind::TimedOut => Loss::Timeout,
        _ if local.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error())) => Loss::Local,
        _ => Loss::Refused,
    };
    Failure::new(loss, format_args!("connect: {error}"))
}

fn no_handshake(error: &io::Error) -> Failure {
    let loss =
        if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>) { Loss::Tls } else { unanswered(error) };
    Failure::new(loss, format_args!("TLS handshake: {error}"))
}

/// What an I/O error means for a request of which no answer was seen.
pub(crate) fn unanswered(error: &io::Error) -> Loss {
    match error.kind() {
        // a TLS peer that closes without saying so is "unexpected end of file"
        io::ErrorKind::UnexpectedEof => Loss::Closed,
        io::ErrorKind::TimedOut => Loss::Timeout,
        _ => Loss::Reset,
    }
}

/// Takes every certificate, but still wants the peer to own its key.
#[derive(Debug)]
struct TrustAnything(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustAnything {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
