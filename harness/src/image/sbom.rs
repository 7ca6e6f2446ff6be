//! An image's inventory as a bill of materials: `CycloneDX` 1.6 as JSON
//! (<https://cyclonedx.org/docs/1.6/json/>), with package URLs (<https://github.com/package-url/purl-spec>).
//!
//! The same image gives the same bytes: its time is the image's, and its serial number follows from the image's content.

use std::fmt::Write as _;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::packages::{Inventory, PackageRow};
use super::{BASE_LABEL, BASE_NAME_LABEL, RECIPE_LABEL};

/// The bill of materials of an image. A Python package that is part of a Debian package is not listed beside it: its
/// version in the Python index says nothing about Debian's patches.
pub fn cyclonedx(inventory: &Inventory) -> Value {
    let system = |key: &str| inventory.system.get(key).map_or("", String::as_str);
    let mut components = Vec::new();
    if let Some(id) = inventory.system.get("ID") {
        let version = system("VERSION_ID");
        components.push(json!({ "type": "operating-system", "bom-ref": "os", "name": id, "version": version }));
    }
    components.extend(base(inventory));
    components.extend(inventory.debian.iter().map(|row| debian(row, system("ID"), system("VERSION_CODENAME"))));
    let python = inventory.python.iter().filter(|row| !row.from_debian);
    components.extend(python.map(python_component));
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": serial(&inventory.id),
        "version": 1,
        "metadata": {
            "timestamp": inventory.created,
            "tools": { "components": [
                { "type": "application", "name": "faultlab", "version": env!("CARGO_PKG_VERSION") }
            ] },
            "component": image(inventory),
        },
        "components": components,
    })
}

fn image(inventory: &Inventory) -> Value {
    let (name, version) = inventory.tag.rsplit_once(':').unwrap_or((&inventory.tag, ""));
    let mut properties = vec![property("faultlab:platform", &inventory.platform)];
    for (key, label) in [("faultlab:recipe", RECIPE_LABEL), ("faultlab:base", BASE_LABEL)] {
        properties.extend(inventory.labels.get(label).map(|value| property(key, value)));
    }
    properties.extend(inventory.digests.iter().map(|digest| property("faultlab:digest", digest)));
    json!({
        "type": "container",
        "bom-ref": "image",
        "name": name,
        "version": version,
        // The image's content as the engine names it: the hash of its configuration, which names its layers.
        "hashes": hashes(&inventory.id),
        "properties": properties,
    })
}

/// The image that it was built on, for images that say so.
fn base(inventory: &Inventory) -> Option<Value> {
    let id = inventory.labels.get(BASE_LABEL)?;
    let name = inventory.labels.get(BASE_NAME_LABEL).map_or("base", String::as_str);
    Some(json!({ "type": "container", "bom-ref": "base", "name": name, "hashes": hashes(id) }))
}

fn debian(row: &PackageRow, distribution: &str, codename: &str) -> Value {
    let (name, architecture) = row.name.split_once(':').unwrap_or((&row.name, "all"));
    let purl = format!(
        "pkg:deb/{}/{}@{}?arch={}&distro={}",
        percent(distribution),
        percent(name),
        percent(&row.version),
        percent(architecture),
        percent(codename)
    );
    json!({ "type": "library", "bom-ref": purl, "name": name, "version": row.version, "purl": purl })
}

fn python_component(row: &PackageRow) -> Value {
    // Names of the Python index are compared in lower case and with `-` (PEP 503).
    let name = row.name.to_lowercase().replace(['_', '.'], "-");
    let purl = format!("pkg:pypi/{}@{}", percent(&name), percent(&row.version));
    let mut component =
        json!({ "type": "library", "bom-ref": purl, "name": row.name, "version": row.version, "purl": purl });
    if let Some(licence) = &row.licence {
        component["licenses"] = json!([{ "expression": licence }]);
    }
    component
}

fn property(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

fn hashes(id: &str) -> Value {
    match id.strip_prefix("sha256:") {
        Some(hex) => json!([{ "alg": "SHA-256", "content": hex }]),
        None => json!([]),
    }
}

/// A UUID of version 8 (RFC 9562: of one's own making) from the image's content.
fn serial(id: &str) -> String {
    let mut bytes: [u8; 16] = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(format!("faultlab sbom 1\n{id}"))[..16]);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = "urn:uuid:".to_string();
    for (at, byte) in bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A part of a package URL: everything but letters, digits, `.`, `-`, `_`, `~` and `:` is percent-encoded.
fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b".-_~:".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn row(name: &str, version: &str, licence: Option<&str>, from_debian: bool) -> PackageRow {
        PackageRow { name: name.into(), version: version.into(), licence: licence.map(String::from), from_debian }
    }

    pub(super) fn sample() -> Inventory {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect()
        };
        Inventory {
            variant: "cpu".into(),
            tag: "faultlab/cpu:952e56e22023".into(),
            id: format!("sha256:{}", "3f".repeat(32)),
            created: "2026-01-02T03:04:05.678Z".into(),
            size: 1,
            platform: "linux/amd64".into(),
            system: map(&[("ID", "debian"), ("VERSION_ID", "13"), ("VERSION_CODENAME", "trixie")]),
            digests: vec![format!("localhost:5000/cpu@sha256:{}", "0a".repeat(32))],
            labels: map(&[
                (BASE_LABEL, &format!("sha256:{}", "1b".repeat(32))),
                (BASE_NAME_LABEL, "debian:trixie-slim"),
            ]),
            debian: vec![row("libomp5-19:amd64", "1:19.1.7-3+b1", None, false)],
            python: vec![
                row("torch", "2.6.0", None, true),
                row("typing_extensions", "4.16.0", Some("PSF-2.0"), false),
                row("torch", "2.11.0+cu130", None, false),
            ],
        }
    }

    #[test]
    fn packages_have_their_urls() {
        let bom = cyclonedx(&sample());
        let purls: Vec<&str> =
            bom["components"].as_array().unwrap().iter().filter_map(|c| c["purl"].as_str()).collect();
        assert_eq!(
            purls,
            [
                "pkg:deb/debian/libomp5-19@1:19.1.7-3%2Bb1?arch=amd64&distro=trixie",
                "pkg:pypi/typing-extensions@4.16.0",
                "pkg:pypi/torch@2.11.0%2Bcu130",
            ]
        );
        assert_eq!(bom, cyclonedx(&sample()), "the same image gives the same bill");
    }

    /// The schema of the standard, which names two others by their addresses.
    #[test]
    fn a_bill_is_valid_by_the_schema_of_the_standard() {
        let schema = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let resource = |text: &str| jsonschema::Resource::from_contents(schema(text));
        let registry = jsonschema::Registry::new()
            .add(
                "http://cyclonedx.org/schema/spdx.SNAPSHOT.schema.json",
                resource(include_str!("../../tests/cyclonedx/spdx.SNAPSHOT.schema.json")),
            )
            .unwrap()
            .add(
                "http://cyclonedx.org/schema/jsf-0.82.SNAPSHOT.schema.json",
                resource(include_str!("../../tests/cyclonedx/jsf-0.82.SNAPSHOT.schema.json")),
            )
            .unwrap()
            .prepare()
            .unwrap();
        let bom = schema(include_str!("../../tests/cyclonedx/bom-1.6.SNAPSHOT.schema.json"));
        let validator =
            jsonschema::options().with_registry(&registry).should_validate_formats(true).build(&bom).unwrap();
        let complaints = |bill: &Value| validator.iter_errors(bill).map(|e| e.to_string()).collect::<Vec<_>>();
        let good = cyclonedx(&sample());
        assert_eq!(complaints(&good), Vec::<String>::new());
        for (pointer, value) in [
            ("/serialNumber", json!("urn:uuid:1")),
            ("/specVersion", json!(1.6)),
            ("/components/0/type", json!("package")),
            ("/metadata/component/hashes/0/content", json!("xyz")),
            ("/metadata/timestamp", json!("yesterday")),
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = value;
            assert!(!complaints(&bad).is_empty(), "{pointer}");
        }
    }
}
