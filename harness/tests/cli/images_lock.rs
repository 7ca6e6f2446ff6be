//! `faultlab images lock`, with a mirror of the test's own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use sha2::{Digest as _, Sha256};

use crate::fixture::{repository, require};
use crate::images::{Images, debian_base, docker_free};

#[test]
fn container_image_lock_writes_what_the_mirror_says_and_names_the_rest() {
    if !require("docker") || !debian_base() {
        return;
    }
    let images = Images::new("lock");
    let script = std::fs::read(repository().join("images/shared/install-packages")).expect("the script");
    images.cli.write("images/shared/install-packages", script);
    let variant = images.variant.clone();
    let yaml = |packages: &str, snapshot: &str| {
        format!(
            "# Kept.\nid: {variant}\ntitle: An image of a test\nbase: 127.0.0.1:9/none:1 # kept too\n\
             stand_in: faultlab-base:trixie\n{snapshot}packages:\n{packages}\
             args:\n  MORE_PACKAGES: >-\n    strace other=1\n\
             verify: [{{ run: [cat, /made], prints: ^made$ }}]\n"
        )
    };
    let file = format!("images/{variant}/image.yaml");
    let before = yaml("  gdb: # the debugger\n  strace: 6.1-1\n  absent: '1'\n", "");
    images.cli.write(&file, &before);
    let mirror = mirror(&[("gdb", "16.3-1"), ("strace", "6.13+ds-1"), ("other", "1")]);
    let lock = |more: &[&str]| {
        let mirror = ["--apt-mirror", &mirror, "--apt-snapshot", "20260101T000000Z"];
        images.cli.run(&[&["images", "lock", &variant], &mirror[..], more].concat())
    };
    let read = || String::from_utf8(images.cli.read(&file)).expect("text");

    let said = lock(&["--check"]).expect(1);
    assert!(said.text().contains("packages.gdb: nothing -> 16.3-1"), "{}", said.text());
    assert_eq!(read(), before, "--check writes nothing");

    let said = lock(&[]).expect(3);
    for part in ["absent", "6.1-1 any more; it has 6.13+ds-1", "127.0.0.1:9/none:1", "its content is sha256:"] {
        assert!(said.stderr.contains(part), "{part} is missing:\n{}", said.stderr);
    }
    let filled = yaml("  gdb: 16.3-1 # the debugger\n  strace: 6.1-1\n  absent: '1'\n", "snapshot: 20260101T000000Z\n");
    assert_eq!(read(), filled.replace("    strace other", "    strace=6.13+ds-1 other"));

    // Once more there is nothing to fill; --update raises what the mirror has no longer.
    assert_eq!(lock(&["--check"]).expect(3).text(), "");
    lock(&["--update"]).expect(3);
    assert!(read().contains("  strace: 6.13+ds-1\n  absent: '1'\n"), "{}", read());
    assert_eq!(images.containers(), "", "a container of a lookup is left");

    // A mirror that does not answer: everything stays, and that is no success.
    let now = read();
    let said = images.cli.run(&["images", "lock", &variant, "--update", "--apt-mirror", "http://127.0.0.1:9/debian"]);
    assert!(said.expect(3).stderr.contains("packages: "), "what failed is named");
    assert_eq!(read(), now);
}

/// A mirror of Debian packages, on this machine's loopback until the tests end. Its address, as apt wants it: the
/// lists have no signature.
fn mirror(packages: &[(&str, &str)]) -> String {
    let architecture = String::from_utf8(docker_free("dpkg", &["--print-architecture"]).stdout).expect("text");
    let architecture = architecture.trim();
    let row = |(name, version): &(&str, &str)| {
        format!(
            "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: a test\nFilename: {name}.deb\n\
             Size: 1\nSHA256: {}\nDescription: d\n\n",
            "0".repeat(64)
        )
    };
    let list = packages.iter().map(row).collect::<Vec<_>>().concat();
    let hash = Sha256::digest(&list).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    // Arguments that name packages are looked for in all components.
    let folder = |component: &str| format!("{component}/binary-{architecture}/Packages");
    let components = ["main", "contrib", "non-free"];
    let sum = |component: &&str| format!(" {hash} {} {}\n", list.len(), folder(component));
    let sums = components.iter().map(sum).collect::<Vec<_>>().concat();
    let release = format!(
        "Suite: trixie\nCodename: trixie\nComponents: main contrib non-free\nArchitectures: {architecture}\n\
         Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n{sums}"
    );
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let request = head.next().unwrap_or_default();
            head.for_each(drop);
            let path = request.split(' ').nth(1).unwrap_or_default();
            let body = match path.strip_prefix("/20260101T000000Z/dists/trixie/") {
                Some("Release") => Some(&release),
                Some(path) if components.iter().any(|c| folder_of(c, path)) => Some(&list),
                _ => None,
            };
            let (status, body) = body.map_or(("404 Not Found", ""), |body| ("200 OK", body));
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + body).as_bytes());
        }
    });
    format!("[trusted=yes] http://{address}")
}

/// Is it the list of a component?
fn folder_of(component: &str, path: &str) -> bool {
    path.strip_prefix(component).is_some_and(|rest| rest.starts_with("/binary-") && rest.ends_with("/Packages"))
}
