//! A CA bundle for the length of a build.
//!
//! The classic builder has no secrets: a build argument lands in the image's history, a copied file in a layer. So the
//! build gets an address instead, and fetches the bundle into a temporary file that the same step removes. A bundle is
//! no secret; it must only not end up in an image that others trust.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Serves something on this machine's loopback until it is dropped.
#[derive(Debug)]
pub(super) struct Served {
    /// Where it is served
    pub(super) url: String,
    task: JoinHandle<()>,
}

impl Served {
    pub(super) fn new(url: String, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { url, task: tokio::spawn(work) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A port for what `name` says. The address is an argument of the build: the same one each time for the same name (if
/// the port is free) keeps the engine's cache of steps good.
pub(super) async fn listen(name: &str) -> io::Result<TcpListener> {
    let wish = name.bytes().fold(0u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(u16::from(byte)));
    match TcpListener::bind(("127.0.0.1", 20_000 + wish % 12_000)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(("127.0.0.1", 0)).await,
    }
}

/// Serves `bytes`.
pub(super) async fn serve(bytes: Vec<u8>, tag: &str) -> io::Result<Served> {
    let listener = listen(tag).await?;
    let url = format!("http://{}/ca.pem", listener.local_addr()?);
    let bytes = Bytes::from(bytes);
    Ok(Served::new(url, async move {
        while let Ok((stream, _)) = listener.accept().await {
            // One reader after the other would let a silent one block the rest.
            tokio::spawn(answer(stream, bytes.clone()));
        }
    }))
}

async fn answer(mut stream: TcpStream, bytes: Bytes) {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") && request.len() < 16 << 10 {
        match stream.read(&mut chunk).await {
            Ok(n) if n > 0 => request.extend_from_slice(&chunk[..n]),
            _ => return,
        }
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-pem-file\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        bytes.len()
    );
    // A reader that goes away has what it wanted.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(&bytes).await;
    let _ = stream.shutdown().await;
}
