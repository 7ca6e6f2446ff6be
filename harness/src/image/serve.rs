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

/// Serves one file on this machine's loopback until it is dropped.
#[derive(Debug)]
pub(super) struct Served {
    /// Where it is served
    pub(super) url: String,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves `bytes`. The address is an argument of the build: the same one each time for the same tag (if the port is
/// free) keeps the engine's cache of steps good.
pub(super) async fn serve(bytes: Vec<u8>, tag: &str) -> io::Result<Served> {
    let wish = tag.bytes().fold(0u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(u16::from(byte)));
    let listener = match TcpListener::bind(("127.0.0.1", 20_000 + wish % 12_000)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("127.0.0.1", 0)).await?,
    };
    let url = format!("http://{}/ca.pem", listener.local_addr()?);
    let bytes = Bytes::from(bytes);
    let task = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // One reader after the other would let a silent one block the rest.
            tokio::spawn(answer(stream, bytes.clone()));
        }
    });
    Ok(Served { url, task })
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
