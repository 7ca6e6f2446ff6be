//! Broken scenarios: each complaint names the file, the line, the key and the mend.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use miette::Diagnostic as _;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::fixture::{Cli, SCENARIO, faulty};

/// What is done to a valid scenario.
enum Edit {
    /// In `scenario.yaml`: this text becomes that.
    Yaml(&'static str, &'static str),
    /// `scenario.yaml` as a whole.
    Whole(&'static [u8]),
    /// A file of the folder.
    File(&'static str, &'static [u8]),
    /// A link, and where it leads.
    Link(&'static str, &'static str),
}

use Edit::{File, Link, Whole, Yaml};

/// The name of the snapshot and the edits.
const BROKEN: &[(&str, &[Edit])] = &[
    ("unknown_key", &[Yaml("needs: []", "need: []")]),
    ("unknown_nested_key", &[Yaml("  error: { type: RuntimeError, text: bad value }\ncpu", "  eror: 1\ncpu")]),
    ("misspelt_tool", &[Yaml("  bare: { async", "  bear: { async")]),
    ("misspelt_tool_on_the_cpu", &[Yaml("  expect: { bare:", "  expect: { cpp-stacktrace:")]),
    ("misspelt_need", &[Yaml("needs: []", "needs: [pytorch, gpus]")]),
    ("misspelt_claim", &[Yaml("expect: { bare: exact }", "expect: { bare: exactly }")]),
    ("clean_claim", &[Yaml("expect: { bare: exact }", "expect: { bare: clean-as-expected }")]),
    ("misspelt_mode", &[Yaml("async: exact,", "asynchronous: exact,")]),
    ("bad_class", &[Yaml("class: shape", "class: device-asert")]),
    ("missing_key", &[Yaml("truth:\n  error: { type: RuntimeError, text: bad value }\n", "")]),
    ("missing_nested_key", &[Yaml("error: { type: RuntimeError, text: bad value }\ncpu", "error: { type: X }\ncpu")]),
    ("duplicate_key", &[Yaml("class: shape", "class: shape\ntitle: Again")]),
    ("duplicate_tool", &[Yaml("expect:\n  bare:", "expect:\n  bare: { sync: exact }\n  bare:")]),
    ("no_fault_marker", &[File("train.py", b"x = 1  # ROOT\n")]),
    ("no_marker_at_all", &[File("train.py", b"x = 1\n")]),
    ("two_root_markers", &[File("train.py", b"x = 1  # ROOT\ny = 2\nz = 3  # ROOT\nf()  # FAULT\n")]),
    ("marker_in_the_twin", &[File("train_fixed.py", b"pass\nf()  # CALLER\n")]),
    ("twin_does_not_exist", &[Yaml("twin: train_fixed.py", "twin: train_fixd.py")]),
    ("twin_is_the_program", &[Yaml("twin: train_fixed.py", "twin: train.py")]),
    ("program_does_not_exist", &[Yaml("program: train.py", "program: main.py")]),
    ("program_is_a_folder", &[Yaml("program: train.py", "program: data"), File("data/x", b"")]),
    ("program_above_the_folder", &[Yaml("program: train.py", "program: ../x.py")]),
    ("program_is_absolute", &[Yaml("program: train.py", "program: /etc/hostname")]),
    ("program_is_a_link_out", &[Yaml("program: train.py", "program: link.py"), Link("link.py", "/etc/passwd")]),
    ("program_is_a_dangling_link", &[Yaml("program: train.py", "program: link.py"), Link("link.py", "nowhere.py")]),
    ("program_is_not_utf8", &[File("train.py", b"x = '\xff'  # FAULT # ROOT\n")]),
    ("program_is_empty_text", &[Yaml("program: train.py", "program: ''")]),
    ("invalid_pattern", &[Yaml("text: bad value }\ncpu", "text: 'bad (value' }\ncpu")]),
    ("id_is_not_the_folder", &[Yaml("id: demo", "id: label-oob")]),
    ("empty_title", &[Yaml("title: A value that is not there", "title: '  '")]),
    ("null_title", &[Yaml("title: A value that is not there", "title:")]),
    ("title_is_a_list", &[Yaml("title: A value that is not there", "title: [a, b]")]),
    ("needs_is_a_word", &[Yaml("needs: []", "needs: torch")]),
    ("expect_is_a_list", &[Yaml("expect:\n  bare: { async: exact, sync: exact }", "expect: [bare]")]),
    ("tab_indentation", &[Yaml("  bare: { async", "\tbare: { async")]),
    ("open_quote", &[Yaml("class: shape", "class: \"shape")]),
    ("open_brace", &[Yaml("expect: { bare: exact }", "expect: { bare: exact")]),
    ("unknown_anchor", &[Yaml("class: shape", "class: *shape")]),
    ("two_documents", &[Yaml("class: shape", "class: shape\n---\nid: demo")]),
    ("not_yaml", &[Whole(b"This is a note about the scenario,\nnot the scenario: really: not.\n")]),
    ("only_a_word", &[Whole(b"scenario\n")]),
    ("empty_file", &[Whole(b"")]),
    ("only_a_comment", &[Whole(b"# to be written\n")]),
    ("nul_bytes", &[Whole(b"id: demo\ntitle: \0\0\0\n")]),
    ("yaml_is_not_utf8", &[Whole(b"id: demo\ntitle: caf\xe9\n")]),
    (
        "several_at_once",
        &[
            Yaml("id: demo", "id: dmeo"),
            Yaml("needs: []", "needs: [troch]"),
            Yaml("  bare: { async", "  bear: { async"),
            Yaml("text: bad value }\ncpu", "text: '[' }\ncpu"),
            File("train_fixed.py", b"f()  # FAULT\n"),
        ],
    ),
];

/// A new tool or a new need must not change every snapshot.
fn without_lists(text: &str) -> String {
    let list = regex::Regex::new(r"possible: (bare|gpu)(?:(?:,\s+|-\s*)[a-z0-9]+)*").expect("a pattern");
    list.replace_all(text, "possible: $1, <AND SO ON>").into_owned()
}

fn broken(edits: &[Edit]) -> Cli {
    let cli = Cli::new();
    cli.scenario("demo", &faulty(""));
    let mut yaml = SCENARIO.to_string();
    for edit in edits {
        match edit {
            Yaml(from, to) => {
                assert_eq!(yaml.matches(from).count(), 1, "{from:?} must occur once");
                yaml = yaml.replace(from, to);
                cli.write("scenarios/demo/scenario.yaml", &yaml);
            }
            Whole(bytes) => cli.write("scenarios/demo/scenario.yaml", bytes),
            File(name, bytes) => cli.write(&format!("scenarios/demo/{name}"), bytes),
            Link(name, to) => symlink(to, cli.path(&format!("scenarios/demo/{name}"))).expect("a link"),
        }
    }
    cli
}

#[test]
fn every_complaint_names_file_line_key_and_mend() {
    for (name, edits) in BROKEN {
        let cli = broken(edits);
        let ran = cli.run(&["show", "demo"]);
        assert_eq!((ran.code, ran.text().as_str()), (Some(2), ""), "{name}: {}", ran.stderr);
        insta::with_settings!({
            description => *name,
            omit_expression => true,
            prepend_module_to_snapshot => false,
            snapshot_path => "snapshots/bad_scenarios",
        }, {
            insta::assert_snapshot!(*name, without_lists(&cli.filter(&ran.stderr)));
        });
    }
}

#[test]
fn the_scenario_that_the_edits_start_from_is_valid() {
    broken(&[]).run(&["show", "demo"]).expect(0);
}

#[test]
fn every_command_refuses_a_broken_scenario_alike() {
    let cli = broken(&[Yaml("class: shape", "class: shap")]);
    let shown = cli.run(&["show", "demo"]).expect(2).stderr;
    for args in [&["list"][..], &["run", "demo"], &["run", "--all"], &["test"], &["record", "demo"]] {
        assert_eq!(cli.run(args).expect(2).stderr, shown, "{args:?}");
    }
}

#[test]
fn complaints_about_several_scenarios_come_together() {
    let cli = broken(&[Yaml("class: shape", "class: shap")]);
    cli.scenario("other", &faulty("").replace("# ROOT", ""));
    let stderr = cli.run(&["list"]).expect(2).stderr;
    assert!(stderr.contains("scenarios/demo/scenario.yaml:5:"), "{stderr}");
    assert!(stderr.contains("has no `# ROOT` marker"), "{stderr}");
}

/// Loads `scenarios/demo` in this process. Every place that a complaint points to lies in the text that it shows.
fn load(cli: &Cli) -> Result<(), TestCaseError> {
    let Err(errors) = faultlab::scenario::load(&cli.path("scenarios"), "demo") else { return Ok(()) };
    prop_assert!(!errors.is_empty());
    for error in &errors {
        prop_assert!(!error.to_string().is_empty());
        prop_assert!(error.help().is_some_and(|help| !help.to_string().is_empty()));
        for label in error.labels().into_iter().flatten() {
            let source = error.source_code().expect("a label has a text");
            let span = source.read_span(label.inner(), 0, 0);
            prop_assert!(span.is_ok(), "{error}: {label:?} lies outside");
            let (start, end) = (label.offset(), label.offset() + label.len());
            let whole = source.read_span(&(0, 0).into(), usize::MAX / 2, usize::MAX / 2);
            if let Ok(Ok(text)) = whole.map(|c| std::str::from_utf8(c.data()).map(String::from)) {
                prop_assert!(text.is_char_boundary(start) && text.is_char_boundary(end), "{error}: {start}..{end}");
            }
        }
    }
    faultlab::cli::complaints(&errors, 80);
    Ok(())
}

/// A piece is cut out of a valid file and something else is put in its place.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let scrap = prop_oneof![
        "[ -~\n]{0,12}",
        "\\PC{0,4}",
        Just("\t".to_string()),
        Just("*a &b !c %d @e".to_string()),
        Just("{{[\"'".to_string()),
        Just("é: ü\r\n".to_string()),
        Just("- - - |\n".to_string()),
        Just("<<: [*x]".to_string()),
        Just("# FAULT".to_string()),
    ];
    proptest::collection::vec((any::<Index>(), 0usize..24, scrap), 1..4).prop_map(|edits| {
        let mut bytes = SCENARIO.as_bytes().to_vec();
        for (at, len, scrap) in edits {
            let start = at.index(bytes.len() + 1);
            let end = (start + len).min(bytes.len());
            bytes.splice(start..end, scrap.bytes());
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_mutation_is_read_or_refused(bytes in mutated()) {
        let cli = broken(&[]);
        cli.write("scenarios/demo/scenario.yaml", bytes);
        load(&cli)?;
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let cli = broken(&[]);
        cli.write("scenarios/demo/scenario.yaml", bytes);
        load(&cli)?;
    }

    #[test]
    fn any_program_is_read_or_refused(program in "(x|é|\n|\r\n| |# FAULT|# ROOT|#CALLER|//ROOT|\t|\u{0}){0,30}") {
        let cli = broken(&[]);
        cli.write("scenarios/demo/train.py", program);
        load(&cli)?;
    }
}

#[test]
fn the_repositorys_scenarios_are_valid() {
    let root = crate::fixture::repository().join("scenarios");
    let ids = faultlab::scenario::ids(Path::new(&root)).expect("scenarios");
    let folders = fs::read_dir(&root).expect("scenarios").flatten().filter(|e| e.path().is_dir()).count();
    assert_eq!(ids.len(), folders, "a folder without scenario.yaml");
    assert!(faultlab::scenario::load_all(&root).is_ok());
}
