//! Reports of live runs and of replays: the same bytes each time they are made, and valid for those who read them.

use std::fs;

use serde_json::Value;

use crate::fixture::{Cli, faulty, repository, require};

/// The GPU's stack: the others have only what a CPU shows.
fn stack(cli: &Cli) -> String {
    let stacks = faultlab::backend::stacks(&cli.path("golden/captures"));
    stacks.into_iter().find(|stack| !stack.starts_with("cpu")).expect("captures of a GPU")
}

fn path_of_repository() -> String {
    repository().display().to_string()
}

/// A run in `run` with every standing: met, differing, skipped, lost, unfinished; and with text that no format likes.
fn every_standing() -> Cli {
    let cli = Cli::new();
    cli.scenario("met", &faulty(""));
    let nasty = r#"
sys.stdout.buffer.write(b"\xff\xfe\x00 not text\r\n")
sys.stderr.buffer.write(b"\x80\x1b[31mred ]]> <&>\"'\x07\n")
sys.stderr.flush()
"#;
    let program = faulty(nasty).replace(
        "raise RuntimeError('bad value')",
        r#"oops("]]> <b>&amp; \x01\x07\x9b5A\x1b[2J\x1b]0;title\x07red\ud800")"#,
    );
    let helper = "\ndef oops(text):\n    raise RuntimeError('bad value ' + text)\n";
    cli.scenario("differs", &program.replace("import os", &format!("{helper}import os")));
    cli.scenario("infra", "# ROOT\nimport there_is_no_such_module  # FAULT\n");
    cli.scenario("skipped", &faulty(""));
    let yaml = String::from_utf8(cli.read("scenarios/skipped/scenario.yaml")).expect("text");
    cli.write(
        "scenarios/skipped/scenario.yaml",
        yaml.replace("needs: []", "needs: [torch]").replace("demo", "skipped"),
    );
    cli
}

#[test]
fn a_report_of_a_run_folder_is_what_the_live_run_wrote() {
    if !require("python") {
        return;
    }
    let cli = every_standing();
    let formats = ["json", "markdown", "junit", "terminal"];
    let args: Vec<String> = formats.iter().flat_map(|f| ["--format".into(), format!("{f}:live.{f}")]).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ran = cli.run_cpu(&[&["--all", "--jobs", "2"], args.as_slice()].concat()).expect(3);
    assert_eq!(ran.text(), "", "reports go to files");
    for format in formats {
        let live = cli.read(&format!("live.{format}"));
        let again = cli.run(&["report", "run", "--format", format, "--format", &format!("{format}:again")]).expect(3);
        assert_eq!(live, again.stdout, "{format} on standard output");
        assert_eq!(live, cli.read("again"), "{format} in a file");
        let text = String::from_utf8(live).expect("UTF-8");
        assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{format} ends with one line end");
        // Formats for programs give back what was written, as far as they can; those for people go to terminals.
        let for_people = ["markdown", "terminal"].contains(&format);
        let control = text.chars().find(|c| c.is_control() && *c != '\n' && (for_people || *c < ' '));
        assert_eq!(control, None, "{format} has a control character");
    }
    // Where colours are on, the only escapes are faultlab's own.
    let coloured = cli.run(&["report", "run", "--color", "always"]).expect(3).text();
    let without_styles =
        regex::Regex::new("\x1b\\[[0-9;]*m").expect("a pattern").replace_all(&coloured, "").into_owned();
    assert_eq!(without_styles.as_bytes(), cli.read("live.terminal"));
    assert_eq!(cli.read("live.json"), cli.read("run/run.json"), "run.json is the JSON report");
}

#[test]
fn json_reports_keep_to_the_committed_schema() {
    let root = repository();
    let committed = fs::read_to_string(root.join("docs/run.schema.json")).expect("the schema");
    let fresh = Cli::bare().run(&["schema"]).expect(0).text() == committed;
    assert!(fresh, "docs/run.schema.json is old: `faultlab schema > docs/run.schema.json`");
    let schema: Value = serde_json::from_str(&committed).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let check = |report: &[u8]| {
        let report: Value = serde_json::from_slice(report).expect("JSON");
        let errors: Vec<String> =
            validator.iter_errors(&report).map(|e| format!("{}: {e}", e.instance_path())).collect();
        assert_eq!(errors, Vec::<String>::new());
    };
    let replay = ["run", "--all", "--backend", "replay", "--format", "json", "--root", &path_of_repository()];
    check(&Cli::bare().run(&replay).expect(0).stdout);
    if require("python") {
        let cli = every_standing();
        cli.run_cpu(&["--all"]).expect(3);
        check(&cli.read("run/run.json"));
        // The schema refuses what is no run.
        assert!(!validator.is_valid(&serde_json::json!({ "schema_version": 1 })));
    }
}

#[test]
fn junit_is_read_by_others() {
    if !require("python") {
        return;
    }
    let cli = every_standing();
    cli.run_cpu(&["--all"]).expect(3);
    // An interrupted run looks like this.
    fs::remove_file(cli.path("run/cases/met/bare.async/result.json")).expect("a result");
    let mut run: Value = serde_json::from_slice(&cli.read("run/run.json")).expect("JSON");
    let cases = run["cases"].as_array_mut().expect("cases");
    let at = cases.iter().position(|c| c["case"]["scenario"] == "met").expect("the case");
    let case = cases.remove(at);
    run["unfinished"] = Value::Array(vec![case["case"].clone()]);
    cli.write("run/run.json", run.to_string());

    let xml = cli.run(&["report", "run", "--format", "junit"]).expect(3).text();
    let read = junit_parser::from_reader(xml.as_bytes()).expect("junit-parser reads it");
    let status = |name: &str| {
        let suite = read.suites.iter().find(|s| s.name == name).expect("a suite for each scenario");
        assert_eq!(suite.cases.len(), 1);
        suite.cases[0].status.clone()
    };
    assert!(status("differs").is_failure());
    assert!(status("infra").is_error());
    assert!(status("met").is_error());
    assert!(status("skipped").is_skipped());
    assert_eq!((read.suites.len(), read.failures, read.errors), (4, 1, 2));
    let strict = quick_junit::Report::deserialize_from_str(&xml).expect("quick-junit reads it");
    assert_eq!(strict.to_string().expect("XML"), xml, "it survives a round trip");
    for text in ["the run was interrupted before this case came to an end", "there_is_no_such_module", "&lt;b&gt;"] {
        assert!(xml.contains(text), "{text}:\n{xml}");
    }
}

#[test]
fn a_replay_says_that_it_is_one() {
    let cli = Cli::bare();
    let ran = cli.run(&["run", "label-oob", "--backend", "replay", "--root", &path_of_repository()]).expect(0);
    let notice = ran.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(notice.starts_with("REPLAY: nothing was run here. Recorded 20"), "{notice}");
    assert!(notice.contains(" on NVIDIA "), "{notice}");
    assert!(ran.stderr.contains("backend replay: asked for"), "{}", ran.stderr);
    let run = fs::read_dir(cli.path("faultlab-runs")).expect("runs").flatten().next().expect("a run").path();
    let again = cli.run(&["report", &run.display().to_string()]).expect(0);
    assert_eq!(again.text(), ran.text(), "a report of a replay's folder");
}

#[test]
fn the_copy_in_the_binary_replays_too() {
    let cli = Cli::bare();
    let args = ["run", "label-oob", "--backend", "replay", "--format"];
    let own = cli.run(&[&args[..], &["markdown"]].concat()).expect(0);
    let checkout = cli.run(&[&args[..], &["markdown", "--root", &path_of_repository()]].concat()).expect(0);
    assert_eq!(own.text(), checkout.text());
    let test = cli.run(&["test"]).expect(2);
    assert!(test.stderr.contains("snapshots are part of a checkout"), "{}", test.stderr);
}

#[test]
fn a_capture_of_another_program_is_refused() {
    let cli = Cli::copy_of_the_repository();
    let program = String::from_utf8(cli.read("scenarios/label-oob/train.py")).expect("text");
    cli.write("scenarios/label-oob/train.py", format!("# one line more\n{program}"));
    let ran = cli.run(&["run", "label-oob", "--backend", "replay", "--no-twins"]).expect(3);
    let text = ran.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("train.py has changed since it was recorded on 20"), "{text}");
    assert!(text.contains("`faultlab record label-oob` on a machine with a GPU"), "{text}");
    let twins = cli.run(&["run", "label-oob", "--backend", "replay", "--tool", "bare", "--format", "json"]).expect(3);
    let run: Value = serde_json::from_slice(&twins.stdout).expect("JSON");
    for case in run["cases"].as_array().expect("cases") {
        let kind = case["outcome"]["kind"].as_str();
        let expected = if case["case"]["subject"] == "twin" { "judged" } else { "infra" };
        assert_eq!(kind, Some(expected), "{case:#}");
    }
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let cli = Cli::copy_of_the_repository();
    let stack = stack(&cli);
    let other = cli.run(&["run", "label-oob", "--backend", "replay", "--stack", "h100"]).expect(2);
    assert!(other.stderr.contains("there are no captures of the stack `h100`; there are: "), "{}", other.stderr);
    assert!(other.stderr.contains(&stack), "{}", other.stderr);
    let cpu = cli.run(&["run", "label-oob", "--backend", "replay", "--device", "cpu"]).expect(2);
    assert!(cpu.stderr.contains("use --backend local"), "{}", cpu.stderr);
    cli.write(&format!("golden/captures/{stack}/label-oob/bare.async/capture.json"), "{");
    let broken = cli.run(&["run", "label-oob", "--backend", "replay"]).expect(3);
    assert!(broken.stderr.contains("bare.async/capture.json is not a capture's description"), "{}", broken.stderr);
    fs::remove_dir_all(cli.path("golden/captures")).expect("captures");
    let none = cli.run(&["run", "label-oob", "--backend", "replay"]).expect(3);
    assert!(none.stderr.contains("`faultlab record --all` on a machine with a GPU writes them"), "{}", none.stderr);
}

#[test]
fn snapshots_are_compared_shown_and_blessed() {
    let cli = Cli::copy_of_the_repository();
    let green = cli.run(&["test"]).expect(0).text();
    assert!(green.ends_with("stack(s): 0 differ\n"), "{green}");

    let folder = format!("golden/snapshots/{}", stack(&cli));
    let name = format!("{folder}/label-oob.terminal.snap");
    let good = String::from_utf8(cli.read(&name)).expect("text");
    let line = good.lines().find(|l| l.contains("wrong place")).expect("a line of the table");
    cli.write(&name, good.replacen(line, &line.replace("wrong place", "exact (fault)"), 1));
    cli.write(&format!("{folder}/gone.terminal.snap"), &good);
    fs::remove_file(cli.path(&format!("{folder}/all.junit.snap"))).expect("a snapshot");

    let red = cli.run(&["test"]).expect(1).text();
    for text in [
        "label-oob.terminal differs from its snapshot",
        &format!("-{}", line.replace("wrong place", "exact (fault)")).replacen("-  ", "-   ", 1),
        &format!("+ {line}"),
        "all.junit has no snapshot yet",
        "gone.terminal.snap belongs to no report",
        "3 differ",
        "faultlab test --bless",
    ] {
        assert!(red.contains(text), "{text}:\n{red}");
    }
    let blessed = cli.run(&["test", "--bless"]).expect(0).text();
    assert!(blessed.contains("/label-oob.terminal") && blessed.contains("gone.terminal.snap"), "{blessed}");
    assert_eq!(String::from_utf8(cli.read(&name)).expect("text"), good, "blessed is as it was");
    cli.run(&["test"]).expect(0);
}

#[test]
fn a_damaged_run_folder_is_named() {
    let cli = Cli::bare();
    cli.run(&["run", "label-oob", "--backend", "replay", "--out", "run"]).expect(0);
    let good = String::from_utf8(cli.read("run/run.json")).expect("text");
    let (half, _) = good.split_at(good.len() / 2);
    for (json, text) in [
        (half.to_string(), "run/run.json is not a file that faultlab wrote: EOF while parsing"),
        (String::new(), "run/run.json is not a file that faultlab wrote: EOF while parsing"),
        (good.replace("\"schema_version\": 1", "\"schema_version\": 99"), "run/run.json has schema version 99"),
        (good.replace("\"jobs\"", "\"jbos\""), "unknown field `jbos`"),
    ] {
        cli.write("run/run.json", json);
        for args in [&["report", "run"][..], &["run", "--resume", "run"]] {
            let ran = cli.run(args).expect(3);
            assert!(ran.stderr.contains(text) && ran.text().is_empty(), "{args:?}: {}", ran.stderr);
        }
    }
}
