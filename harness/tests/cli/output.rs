//! What goes where: colours, widths, pipes, help, and the words for what is not there.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::sync::LazyLock;

use nix::pty::{Winsize, openpty};
use serde_json::Value;
use unicode_width::UnicodeWidthStr as _;

use crate::fixture::{Cli, docker, repository, require};

/// A replay of everything, from the repository.
fn replay_all() -> [&'static str; 6] {
    static ROOT: LazyLock<String> = LazyLock::new(|| repository().display().to_string());
    ["run", "--all", "--backend", "replay", "--root", &ROOT]
}

/// A replay of one scenario, from the copy in the binary.
const REPLAY: &[&str] = &["run", "label-oob", "--backend", "replay"];

/// Everything that is printed at a terminal of this many columns.
fn at_terminal(cli: &Cli, columns: u16, args: &[&str]) -> String {
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(Some(&size), None).expect("a pseudo-terminal");
    let mut command = cli.command(args);
    command.env("TERM", "xterm-256color").stdout(Stdio::from(pty.slave)).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary starts");
    // It holds the terminal's other end, and reading would not end.
    drop(command);
    let mut bytes = Vec::new();
    // Linux ends a terminal whose other end is closed with an error.
    let _ = std::fs::File::from(pty.master).read_to_end(&mut bytes);
    assert!(child.wait().expect("faultlab ends").success());
    String::from_utf8(bytes).expect("UTF-8")
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let cli = Cli::bare();
    for columns in [40, 60, 99, 160] {
        for args in [&replay_all()[..], REPLAY] {
            let text = plain(&at_terminal(&cli, columns, args));
            let wide: Vec<&str> =
                text.lines().map(str::trim_end).filter(|l| l.width() > usize::from(columns)).collect();
            assert_eq!(wide, Vec::<&str>::new(), "wider than {columns}");
        }
    }
}

#[test]
fn colours_are_for_terminals() {
    let cli = Cli::bare();
    let args = replay_all();
    let piped = cli.run(&args).expect(0);
    assert!(!piped.text().contains('\x1b') && !piped.stderr.contains('\x1b'));
    let coloured = cli.run(&[&args[..], &["--color", "always"]].concat()).expect(0).text();
    assert!(coloured.contains("\x1b["));
    assert_eq!(plain(&coloured), piped.text(), "colours change nothing else");

    assert!(at_terminal(&cli, 120, REPLAY).contains("\x1b["));
    assert!(!at_terminal(&cli, 120, &[REPLAY, &["--color", "never"]].concat()).contains('\x1b'));
    let cli = cli.env("NO_COLOR", "1");
    assert!(!at_terminal(&cli, 120, REPLAY).contains('\x1b'));
    let asked = cli.run(&[REPLAY, &["--color", "always"]].concat()).expect(0);
    assert!(asked.text().contains("\x1b["), "the flag is nearer than the variable");
}

#[test]
fn files_have_no_colours() {
    let cli = Cli::bare();
    let formats = ["--format", "terminal:t", "--format", "markdown:m", "--format", "json:j", "--format", "junit:x"];
    cli.run(&[REPLAY, &["--color", "always"], &formats[..]].concat()).expect(0);
    for file in ["t", "m", "j", "x"] {
        assert!(!cli.read(file).contains(&0x1b), "{file}");
    }
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let cli = Cli::bare();
    for args in [&[&replay_all()[..], &["--format", "json"]].concat()[..], &["schema"], &["run", "--help"]] {
        let mut child = cli.command(args).spawn().expect("the binary starts");
        let mut first = String::new();
        let mut reader = BufReader::with_capacity(16, child.stdout.take().expect("a pipe"));
        reader.read_line(&mut first).expect("a line");
        drop(reader);
        let output = child.wait_with_output().expect("faultlab ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("error"), "{args:?}: {stderr}");
    }
}

#[test]
fn help_lists_everything() {
    let cli = Cli::bare();
    let check = |args: &[&str], texts: &[&str]| {
        let help = cli.run(args).expect(0).text();
        for text in texts {
            assert!(help.contains(text), "{args:?} says nothing of {text}:\n{help}");
        }
        let wide = help.lines().find(|l| l.width() > 110);
        assert_eq!(wide, None, "{args:?}");
    };
    check(&["--help"], &["list", "show", "doctor", "run", "report", "test", "record", "schema", "--root", "--color"]);
    let cases = ["--all", "--tool", "--mode", "--no-twins", "--partition"];
    let live = ["--jobs", "--timeout", "--python", "--output-cap"];
    check(&["run", "--help"], &cases);
    check(&["run", "--help"], &live);
    check(&["run", "--help"], &["--backend", "--device", "--stack", "--out", "--resume", "--format"]);
    check(&["run", "--help"], &["terminal, json, junit", "async", "sync", "replay", "cpu"]);
    check(&["record", "--help"], &cases);
    check(&["record", "--help"], &live);
    check(&["record", "--help"], &["--into"]);
    check(&["report", "--help"], &["RUN-DIR", "--format"]);
    check(&["test", "--help"], &["--bless"]);
    check(&["doctor", "--help"], &["--format", "--python"]);
    check(&["show", "--help"], &["--yaml"]);
    check(&["list", "--help"], &["--tools"]);
    for hidden in ["__supervise", "__probe-gpu"] {
        assert!(!cli.run(&["--help"]).text().contains(hidden));
    }
}

#[test]
fn what_is_not_there_is_answered_with_what_is() {
    let cli = Cli::bare();
    cli.write("file", "");
    for (args, texts) in [
        (&["show", "label"][..], &["there is no scenario `label`", "label-oob"][..]),
        (&["run", "label-oob", "nan"], &["there is no scenario `nan`", "nan-backward"]),
        (&["run", "../label-oob"], &["there is no scenario `../label-oob`"]),
        (&["run", "label-oob", "--tool", "gdb3"], &["there is no tool `gdb3`", "bare, cpp-stacktraces"]),
        (&["run", "label-oob", "--format", "xml"], &["unknown format `xml`", "terminal, json, junit, markdown"]),
        (&["report", ".", "--format", "json:"], &["names no file behind the colon"]),
        (&["run", "label-oob", "--mode", "slow"], &["async", "sync", "both"]),
        (&["run", "label-oob", "--backend", "podman"], &["auto", "local", "replay"]),
        (&["run", "label-oob", "--partition", "3/2"], &["`3/2` is not a partition", "2/4"]),
        (&["run", "label-oob", "--timeout", "0"], &["a number of seconds"]),
        (&["run", "label-oob", "--timeout", "nan"], &["a number of seconds"]),
        (&["run", "label-oob", "--output-cap", "1"], &["4096"]),
        (&["run", "label-oob", "--jobs", "0"], &["1..=512"]),
        (&["run", "label-oob", "--out", "file/run"], &["--out file/run: file is no folder"]),
        (&["run", "--resume", "nowhere", "--tool", "bare"], &["cannot be used with"]),
        (&["record-env", "--at", "opt/faultlab"], &["--at opt/faultlab: an absolute path is wanted"]),
        (&["run"], &["name a scenario, or say --all"]),
        (&["run", "label-oob", "--all"], &["cannot be used with"]),
        (&["runn"], &["a similar subcommand exists: 'run'"]),
        (&["report", "nowhere"], &["nowhere is not the folder of a run"]),
        (&["run", "--resume", "nowhere"], &["nowhere is not the folder of a run"]),
        (&["list", "--root", "nowhere"], &["nowhere is not a faultlab checkout"]),
        (&[], &["Usage: faultlab"]),
    ] {
        let ran = cli.run(args).expect(2);
        assert_eq!(ran.text(), "", "{args:?}");
        for text in texts {
            assert!(ran.stderr.contains(text), "{args:?} says nothing of {text}:\n{}", ran.stderr);
        }
    }
}

#[test]
fn a_folder_without_its_yaml_is_named() {
    let cli = Cli::new();
    cli.write("scenarios/typo/scenario.yml", "id: typo\n");
    let ran = cli.run(&["show", "typo"]).expect(2);
    assert!(ran.stderr.contains("scenarios/typo has no scenario.yaml"), "{}", ran.stderr);
}

#[test]
fn a_scenario_of_the_binary_has_no_path_that_is_gone() {
    let shown = Cli::bare().run(&["show", "label-oob"]).expect(0).text();
    assert!(shown.contains("Program: scenarios/label-oob/train.py (built into this program)\n"), "{shown}");
}

#[test]
fn a_report_that_cannot_be_written_is_named_before_anything_runs() {
    let cli = Cli::bare();
    cli.write("folder/file", "");
    let marker = "touch ran";
    for (option, path, why) in [
        ("--format", "json:no/such/r.json", "no/such/r.json: there is no folder no/such"),
        ("--format", "json:folder", "folder is a folder: name a file"),
        ("--bundle", "folder/file/r.tar", "folder/file/r.tar: there is no folder folder/file"),
    ] {
        let ran = cli.run(&["diagnose", option, path, "--", "sh", "-c", marker]).expect(2);
        assert!(
            ran.stderr.contains(&format!("{option}: {why}")) || ran.stderr.contains(&format!("{option} {why}")),
            "{}",
            ran.stderr
        );
        assert!(!cli.path("ran").exists(), "{option} {path}");
        if option == "--format" {
            let ran = cli.run(&[REPLAY, &[option, path]].concat()).expect(2);
            assert!(ran.stderr.contains(why) && !ran.stderr.contains("backend"), "{}", ran.stderr);
        }
    }
    // What only the write itself shows: the folder of the run is told all the same.
    let ran = cli.run(&[REPLAY, &["--format", "json:/dev/full"]].concat()).expect(3);
    assert!(ran.stderr.contains("failed to write /dev/full") && ran.stderr.contains("run folder: "), "{}", ran.stderr);
}

#[test]
fn doctor_says_what_is_missing_and_how_to_get_it() {
    let cli = Cli::new().env("PATH", "/nowhere");
    let ran = cli.run(&["doctor", "--format", "json"]).expect(0);
    let diagnosis: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let missing = |probed: &Value, what: &str| {
        let (why, mend) = (&probed["Err"]["why"], &probed["Err"]["mend"]);
        assert!(why.as_str().is_some_and(|w| w.contains("was not found")), "{what}: {probed}");
        assert!(mend.as_str().is_some_and(|m| !m.is_empty()), "{what}: {probed}");
    };
    missing(&diagnosis["host"]["python"], "python");
    missing(&diagnosis["host"]["torch"], "torch");
    for program in diagnosis["host"]["programs"].as_array().expect("programs") {
        if program["version"].get("Ok").is_none() {
            missing(&program["version"], &program["name"].to_string());
        }
    }
    for backend in diagnosis["backends"].as_array().expect("backends") {
        assert!(backend["obstacle"].is_string(), "{backend}");
    }
    let text = cli.run(&["doctor"]).expect(0).text();
    for text_of in ["-- Python", "python3 was not found", "get it: install Python 3", "`apt-get install gdb`"] {
        assert!(text.contains(text_of), "{text_of}:\n{text}");
    }
    let there = Cli::bare().run(&["doctor", "--format", "json"]).expect(0);
    assert!(serde_json::from_slice::<Value>(&there.stdout).is_ok());
}

#[test]
fn doctor_sees_the_container_engine_through_its_api() {
    if !require("docker") {
        return;
    }
    let version = docker(&["version", "--format", "{{.Server.Version}}"]);
    let ran = Cli::bare().run(&["doctor", "--format", "json"]).expect(0);
    let found: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(found["host"]["docker"]["Ok"]["version"].as_str(), Some(version.trim()), "{found:#}");
    // A socket where nobody listens is named, and no more is made of it.
    let nobody = Cli::bare().env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    let ran = nobody.run(&["doctor", "--format", "json"]).expect(0);
    let found: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let missing = &found["host"]["docker"]["Err"];
    assert!(missing["why"].as_str().is_some_and(|why| why.starts_with("no engine")), "{missing:#}");
    assert!(missing["mend"].as_str().is_some_and(|mend| !mend.is_empty()), "{missing:#}");
}
