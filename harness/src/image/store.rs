//! What a build compiled, kept for the next one.
//!
//! A step that is interrupted leaves nothing in the engine, and the classic builder has no cache mounts. So ccache in the
//! build gets an address on this machine's loopback, and stores each result there as soon as it has it (ccache's remote
//! storage over HTTP, layout `subdirs`). The same works for any builder that uses the machine's network.
//!
//! The address holds a secret of the store: whoever can write into it decides what a build compiles to.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::serve::{Served, listen};

/// A result of one compilation is not larger.
const LIMIT: usize = 512 << 20;

/// How long a request's head may take.
const HEAD_LIMIT: Duration = Duration::from_secs(30);

/// The file that holds the store's secret.
const SECRET: &str = "secret";

/// Serves a folder of results until it is dropped. The address stays the same for the same tag and folder.
pub(super) async fn serve_store(folder: &Path, tag: &str) -> io::Result<Served> {
    let secret = prepare(folder)?;
    let listener = listen(&format!("{tag} compiler results")).await?;
    let url = format!("http://{}/{secret}", listener.local_addr()?);
    let store = Arc::new(Store { folder: folder.into(), prefix: format!("/{secret}/") });
    Ok(Served::new(url, async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(connection(stream, Arc::clone(&store)));
        }
    }))
}

struct Store {
    folder: PathBuf,
    /// `/<secret>/`
    prefix: String,
}

/// Makes the folder, for its owner alone, and returns its secret.
fn prepare(folder: &Path) -> io::Result<String> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let path = folder.join(SECRET);
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    if known.len() == 32 && known.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(known);
    }
    let mut random = [0; 16];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut random)?;
    let secret = random.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    // Whole or not at all: another build may look for it just now.
    let temporary = tempfile::NamedTempFile::new_in(folder)?;
    std::fs::write(temporary.path(), &secret)?;
    match temporary.persist_noclobber(&path) {
        Ok(_) => Ok(secret),
        // Another build was first, or it is none: then it is replaced.
        Err(e) if known.is_empty() && path.exists() => {
            drop(e);
            std::fs::read_to_string(&path)
        }
        Err(e) => {
            e.file.persist(&path).map_err(|e| e.error)?;
            Ok(secret)
        }
    }
}

async fn connection(stream: TcpStream, store: Arc<Store>) {
    let service = service_fn(move |request| {
        let store = Arc::clone(&store);
        async move { Ok::<_, Infallible>(answer(&store, request).await) }
    });
    // What a client that went away still wanted is of no interest.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(store: &Store, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, body) = match store.file(request.uri().path()) {
        Some(path) => exchange(&path, request).await,
        None => (StatusCode::NOT_FOUND, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
}

async fn exchange(path: &Path, request: Request<Incoming>) -> (StatusCode, Bytes) {
    match *request.method() {
        Method::GET => match tokio::fs::read(path).await {
            Ok(bytes) => (StatusCode::OK, bytes.into()),
            Err(_) => (StatusCode::NOT_FOUND, Bytes::new()),
        },
        Method::HEAD if path.is_file() => (StatusCode::OK, Bytes::new()),
        Method::HEAD => (StatusCode::NOT_FOUND, Bytes::new()),
        Method::PUT => {
            let Ok(body) = Limited::new(request.into_body(), LIMIT).collect().await else {
                return (StatusCode::PAYLOAD_TOO_LARGE, Bytes::new());
            };
            match put(path, &body.to_bytes()) {
                Ok(()) => (StatusCode::CREATED, Bytes::new()),
                Err(e) => (StatusCode::INSUFFICIENT_STORAGE, e.to_string().into()),
            }
        }
        // A result that ccache finds damaged.
        Method::DELETE => {
            let _ = tokio::fs::remove_file(path).await;
            (StatusCode::NO_CONTENT, Bytes::new())
        }
        _ => (StatusCode::METHOD_NOT_ALLOWED, Bytes::new()),
    }
}

/// A reader finds the whole file or none.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut file, bytes)?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

impl Store {
    /// `/<secret>/ab/cdef…`, and nothing that is not exactly so: no path leads out of the folder.
    fn file(&self, path: &str) -> Option<PathBuf> {
        let (folder, name) = path.strip_prefix(&self.prefix)?.split_once('/')?;
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
        (folder.len() == 2 && name.len() >= 8 && plain(folder) && plain(name))
            .then(|| self.folder.join(folder).join(name))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Says one thing to the store; returns the status and the body.
    async fn ask(url: &str, method: &str, path: &str, body: &str) -> (u16, String) {
        let (address, secret) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let path = path.replace("SECRET", secret);
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
    }

    #[tokio::test]
    async fn what_one_build_stores_the_next_one_finds() {
        let folder = tempfile::tempdir().unwrap();
        let path = "/SECRET/ab/cdef012345";
        let first = serve_store(folder.path(), "t").await.unwrap();
        assert_eq!(ask(&first.url, "GET", path, "").await.0, 404);
        assert_eq!(ask(&first.url, "HEAD", path, "").await.0, 404);
        assert_eq!(ask(&first.url, "PUT", path, "an object").await.0, 201);
        let url = first.url.clone();
        drop(first);
        let second = serve_store(folder.path(), "t").await.unwrap();
        assert_eq!(second.url.rsplit_once('/').unwrap().1, url.rsplit_once('/').unwrap().1);
        assert_eq!(ask(&second.url, "GET", path, "").await, (200, "an object".into()));
        assert_eq!(ask(&second.url, "HEAD", path, "").await, (200, String::new()));
        assert_eq!(ask(&second.url, "DELETE", path, "").await.0, 204);
        assert_eq!(ask(&second.url, "GET", path, "").await.0, 404);
    }

    #[tokio::test]
    async fn nobody_gets_out_of_the_folder_or_in_without_the_secret() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("store");
        std::fs::write(outer.path().join("outside0"), "x").unwrap();
        let served = serve_store(&folder, "t").await.unwrap();
        for path in [
            "/SECRET/../outside0",
            "/SECRET/..%2foutside0",
            "/SECRET/secret",
            "/ab/cdef012345",
            "/SECRET/ab/../../outside0",
            "//ab/cdef012345",
        ] {
            for method in ["GET", "PUT"] {
                assert_eq!(ask(&served.url, method, path, "y").await.0, 404, "{method} {path}");
            }
        }
        assert_eq!(std::fs::read_to_string(outer.path().join("outside0")).unwrap(), "x");
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
