//! The packages of an image, and those that a mirror has for it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::ImageError;
use super::build::Options;
use super::engine::{Engine, Job};
use super::serve::serve;

/// What is in an image.
#[derive(Debug, Serialize)]
pub struct Inventory {
    /// The variant
    pub variant: String,
    /// Its name
    pub tag: String,
    /// Its content
    pub id: String,
    /// When it was made, as the engine writes it (RFC 3339)
    pub created: String,
    /// Bytes
    pub size: i64,
    /// `linux/amd64` and the like
    pub platform: String,
    /// `/etc/os-release`: the keys `ID`, `VERSION_ID`, `VERSION_CODENAME` and what else is there
    pub system: BTreeMap<String, String>,
    /// Names that registries know it by: `NAME@sha256:…`
    pub digests: Vec<String>,
    /// Labels
    pub labels: BTreeMap<String, String>,
    /// Debian packages
    pub debian: Vec<PackageRow>,
    /// Python packages, also those that came from Debian
    pub python: Vec<PackageRow>,
}

/// A package.
#[derive(Debug, Clone, Serialize)]
pub struct PackageRow {
    /// Name; a Debian package's with its architecture, as in `gdb:amd64`
    pub name: String,
    /// Version
    pub version: String,
    /// Its licence as an SPDX expression, where the package itself states one (Python's `License-Expression`)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    /// Of a Python package: is it part of a Debian package?
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_debian: bool,
}

/// Looks into an image.
pub async fn inventory(engine: &Engine, variant: &str, tag: &str) -> Result<Inventory, ImageError> {
    let found = engine.find(tag).await?.ok_or_else(|| ImageError::NotBuilt { variant: variant.into() })?;
    let ask = async |command: &[&str]| {
        let command: Vec<String> = command.iter().map(ToString::to_string).collect();
        // An image without such a program has no such packages.
        let answered = engine.answer(tag, &command).await.ok().filter(|a| a.code == 0);
        answered.map(|a| a.text).unwrap_or_default()
    };
    let debian = ask(&["dpkg-query", "--show", "--showformat=${Package}:${Architecture}\\t${Version}\\n"]).await;
    let python = ask(&["python3", "-c", PYTHON_PACKAGES]).await;
    let system = ask(&["cat", "/etc/os-release"]).await;
    let or_empty = |text: Option<String>| text.unwrap_or_default();
    Ok(Inventory {
        variant: variant.into(),
        tag: tag.into(),
        id: or_empty(found.id),
        created: or_empty(found.created),
        size: found.size.unwrap_or_default(),
        platform: format!("{}/{}", or_empty(found.os), or_empty(found.architecture)),
        system: os_release(&system),
        digests: found.repo_digests.unwrap_or_default(),
        labels: found.config.and_then(|c| c.labels).unwrap_or_default().into_iter().collect(),
        debian: rows(&debian),
        python: rows(&python),
    })
}

/// Names, versions, licences and origins of what Python would import.
const PYTHON_PACKAGES: &str = "import importlib.metadata as m
rows = {(d.metadata['Name'], d.version, d.metadata.get('License-Expression') or '',
         'debian' if str(d.locate_file('')).startswith('/usr/lib/python3') else '') for d in m.distributions()}
for row in sorted(rows):
    print(*row, sep='\\t')";

fn rows(text: &str) -> Vec<PackageRow> {
    let row = |line: &str| {
        let mut cells = line.split('\t').map(str::trim);
        let (name, version) = (cells.next()?, cells.next()?);
        let licence = cells.next().filter(|l| !l.is_empty()).map(String::from);
        let from_debian = cells.next() == Some("debian");
        Some(PackageRow { name: name.into(), version: version.into(), licence, from_debian })
    };
    text.lines().filter_map(row).collect()
}

fn os_release(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (key, value) = line.split_once('=')?;
        Some((key.trim().to_string(), value.trim().trim_matches('"').to_string()))
    };
    text.lines().filter_map(pair).collect()
}

/// What a mirror has of a Debian package.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Offered {
    /// The version that would be installed
    pub(super) candidate: String,
    /// All versions
    pub(super) versions: Vec<String>,
}

/// How long a look into a mirror may take.
const MIRROR_LIMIT: Duration = Duration::from_mins(5);

/// Before [`Engine`] runs `install-packages` in the base, which sets apt up exactly as a build does, this stands in for
/// `apt-get`: it fetches the lists, and in place of an installation says what there is. Its first argument is the text of
/// `install-packages`, the others are packages.
const LOOK: &str = r#"set -eu
mkdir /tmp/look
cat > /tmp/look/apt-get <<'END'
#!/bin/sh
set -eu
case " $* " in
*' update '*) exec /usr/bin/apt-get "$@" >&2 ;;
*' install '*)
    for package; do
        case $package in -*|install) continue ;; esac
        printf 'FAULTLAB\t%s\t%s\t%s\n' "$package" \
            "$(apt-cache policy "$package" | sed -n 's/^ *Candidate: *//p')" \
            "$(apt-cache madison "$package" | while IFS='| ' read -r _ version _; do printf '%s ' "$version"; done)"
    done ;;
esac
END
printf '%s' "$1" > /tmp/look/install-packages
chmod 755 /tmp/look/*
shift
PATH=/tmp/look:$PATH exec /tmp/look/install-packages "$@"
"#;

/// Asks the mirror that a build would use, in a container of the base, what it has of `packages`. `snapshot` and
/// `components` are as in a build; `script` is `images/shared/install-packages`.
pub(super) async fn offered(
    engine: &Engine,
    options: &Options,
    base: &str,
    script: &str,
    components: Option<&str>,
    packages: &[String],
) -> Result<BTreeMap<String, Offered>, ImageError> {
    let served = match &options.ca_bundle {
        Some(path) => {
            let io = |source| ImageError::Io { path: path.clone(), source };
            Some(serve(tokio::fs::read(path).await.map_err(io)?, "lock").await.map_err(io)?)
        }
        None => None,
    };
    let mut env = Vec::new();
    for (key, value) in [
        ("FAULTLAB_APT_MIRROR", options.apt_mirror.as_deref()),
        ("FAULTLAB_APT_SNAPSHOT", options.apt_snapshot.as_deref()),
        ("FAULTLAB_APT_COMPONENTS", components),
        ("FAULTLAB_CA_URL", served.as_ref().map(|served| served.url.as_str())),
        ("http_proxy", options.proxy.as_deref()),
        ("https_proxy", options.proxy.as_deref()),
        ("no_proxy", options.proxy.as_ref().map(|_| "127.0.0.1,localhost")),
    ] {
        if let Some(value) = value {
            env.push(format!("{key}={value}"));
        }
    }
    let mut command: Vec<String> = ["sh", "-c", LOOK, "look", script].map(String::from).into();
    command.extend_from_slice(packages);
    let job = Job { image: base, command: &command, env, as_a_step: true, limit: MIRROR_LIMIT };
    let answered = engine.run(job).await?;
    let offered = read_offered(&answered.text);
    if answered.code != 0 || packages.iter().any(|package| !offered.contains_key(package)) {
        let why = answered.text.lines().rev().filter(|line| !line.trim().is_empty()).take(8).collect::<Vec<_>>();
        let lines = why.iter().rev().fold(format!("exit code {}", answered.code), |mut text, line| {
            let _ = write!(text, "\n  | {}", line.trim_end());
            text
        });
        return Err(ImageError::Engine { what: "read the mirror's lists of packages".into(), why: lines });
    }
    Ok(offered)
}

fn read_offered(text: &str) -> BTreeMap<String, Offered> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("FAULTLAB\t")?.split('\t');
        let (package, candidate, versions) = (cells.next()?, cells.next()?, cells.next()?);
        let candidate = if candidate == "(none)" { "" } else { candidate.trim() };
        let versions = versions.split_whitespace().map(String::from).collect();
        Some((package.to_string(), Offered { candidate: candidate.into(), versions }))
    };
    text.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_mirror_are_read() {
        let text =
            "Get:1 http://mirror\nFAULTLAB\tgdb\t16.3-1\t16.3-1 15.2-1 \nFAULTLAB\tnone\t\t\nFAULTLAB\tv\t(none)\t\n";
        let offered = read_offered(text);
        assert_eq!(
            offered["gdb"],
            Offered { candidate: "16.3-1".into(), versions: vec!["16.3-1".into(), "15.2-1".into()] }
        );
        assert_eq!((&offered["none"], &offered["v"]), (&Offered::default(), &Offered::default()));
    }

    #[test]
    fn rows_have_what_their_source_has() {
        let rows = rows("gdb:amd64\t16.3-1\ntorch\t2.6.0\t\tdebian\nsympy\t1.14.0\tBSD-3-Clause\t\nnoise\n");
        let cells: Vec<_> =
            rows.iter().map(|r| (r.name.as_str(), r.version.as_str(), r.licence.as_deref(), r.from_debian)).collect();
        assert_eq!(
            cells,
            [
                ("gdb:amd64", "16.3-1", None, false),
                ("torch", "2.6.0", None, true),
                ("sympy", "1.14.0", Some("BSD-3-Clause"), false)
            ]
        );
        assert_eq!(os_release("ID=debian\nVERSION_ID=\"13\"\n")["VERSION_ID"], "13");
    }
}
