//! The reports of the recorded captures against their snapshots, as insta sees them. `faultlab test` makes the same
//! comparison without a Rust toolchain.

use std::path::Path;

use faultlab::golden;

#[test]
fn reports_are_their_snapshots() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let captures = root.join("golden/captures");
    let reports = golden::reports(&root.join("scenarios"), &captures).expect("scenarios and captures can be read");
    assert!(!reports.is_empty(), "there are no captures below {}", captures.display());
    for report in &reports {
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path(format!("snapshots/{}", report.stack));
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(report.name.as_str(), report.text));
    }
    let orphans = golden::orphans(&reports, &root.join("golden/snapshots"));
    assert_eq!(orphans, Vec::<std::path::PathBuf>::new(), "snapshots that belong to no report");
}
