//! Cases in containers, on the real engine.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::containers::{DOCKER, HERE, IMAGE, finish, ready, run, said, send, start};
use crate::fixture::{Cli, faulty};

fn docker(args: &[&str]) -> String {
    HERE.docker(args)
}

#[test]
fn a_case_gives_its_verdict_and_shows_its_environment() {
    if !ready() {
        return;
    }
    let cli = Cli::new().env("CUDA_LAUNCH_BLOCKING", "1").env("PYTHONSTARTUP", "/nowhere");
    let look = "import json\nprint(json.dumps([sorted(os.environ), os.getcwd(), __file__]))";
    cli.scenario("dock-verdict", &faulty(look));
    let ran = run(&cli, &["dock-verdict"]).expect(0);
    assert!(
        ran.stderr.contains("backend docker: asked for, with image faultlab-test:python (sha256:"),
        "{}",
        ran.stderr
    );
    let result = cli.result("run", "dock-verdict/bare.async");
    assert_eq!(result["outcome"]["verdict"], json!({ "exact": "fault" }), "{result:#}");
    assert_eq!(result["process"]["provenance"]["backend"], json!("docker"));
    let capture: Value =
        serde_json::from_slice(&cli.read("run/cases/dock-verdict/bare.async/capture.json")).expect("JSON");
    assert_eq!(capture["env"], json!({ "CUDA_VISIBLE_DEVICES": "" }));
    assert_eq!(capture["env_seen"], capture["env"], "read back from the process");
    assert_eq!(
        said(&cli, "dock-verdict"),
        json!([["CUDA_VISIBLE_DEVICES", "HOME", "PATH", "PYTHONDONTWRITEBYTECODE"], "/work", "/scenario/train.py"])
    );
    HERE.gone("dock-verdict");
}

#[test]
fn a_container_may_do_next_to_nothing() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    cli.scenario("dock-inspect", &faulty("time.sleep(1000)"));
    let child = start(&cli, &["dock-inspect"]);
    let id = HERE.running("dock-inspect");
    let found: Value = serde_json::from_str(&docker(&["inspect", &id])).expect("JSON");
    let (host, config) = (&found[0]["HostConfig"], &found[0]["Config"]);
    assert_eq!(host["NetworkMode"], json!("none"));
    assert_eq!(host["ReadonlyRootfs"], json!(true));
    assert_eq!(host["CapDrop"], json!(["ALL"]));
    assert!(host["CapAdd"].as_array().is_none_or(Vec::is_empty), "{host:#}");
    assert_eq!(host["Privileged"], json!(false));
    assert_eq!(host["SecurityOpt"], json!(["no-new-privileges"]));
    assert_eq!(host["PidsLimit"], json!(1024));
    assert!(host["Memory"].as_i64().is_some_and(|bytes| bytes > 0 && host["MemorySwap"] == json!(bytes)), "{host:#}");
    assert!(host["Tmpfs"]["/work"].as_str().is_some_and(|o| o.contains("size=")), "{host:#}");
    assert_ne!(config["User"], json!("0:0"));
    assert_ne!(config["User"], json!(""));
    let mounts = found[0]["Mounts"].as_array().expect("mounts");
    assert!(mounts.iter().all(|m| m["RW"] == json!(false)), "{mounts:#?}");
    assert!(mounts.iter().any(|m| m["Destination"] == json!("/scenario")), "{mounts:#?}");
    assert_eq!(config["Labels"]["managed-by"], json!("faultlab"));
    assert_eq!(config["Labels"]["faultlab.case"], json!("dock-inspect/bare.async"));
    assert!(config["Labels"]["faultlab.run"].as_str().is_some_and(|run| !run.is_empty()));
    send(&child, Signal::SIGINT);
    let ran = finish(child).expect(3);
    assert!(ran.stderr.contains("goes on with it"), "{}", ran.stderr);
    assert!(HERE.containers("dock-inspect").is_empty(), "Ctrl-C removes the container before faultlab ends");
}

#[test]
fn what_a_program_may_not_do_fails_and_the_next_case_is_untouched() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    let evil = r#"
import errno, json, socket
def tried(what):
    try:
        what()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def fill():
    with open("big", "wb") as file:
        for block in range(1 << 12):
            file.write(b"x" * (1 << 20))

def fork():
    for child in range(5000):
        if os.fork() == 0:
            time.sleep(1000)

def call():
    socket.create_connection(("192.0.2.1", 80), timeout=5)

print(json.dumps({
    "root": tried(lambda: open("/file", "w")),
    "scenario": tried(lambda: open("/scenario/train.py", "a")),
    "call": tried(call),
    "become root": tried(lambda: os.setuid(0)),
    "mount": tried(lambda: os.chroot("/work")),
    "fill": tried(fill),
    "fork": tried(fork),
}))
"#;
    cli.scenario("dock-a-evil", &faulty(evil));
    // Its mode would allow it: the mount does not.
    let anyone = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(cli.path("scenarios/dock-a-evil/train.py"), anyone).expect("a mode");
    cli.scenario("dock-b-good", &faulty("assert os.listdir('.') == [], os.listdir('.')"));
    let ran = run(&cli, &["dock-a-evil", "dock-b-good"]).expect(0);
    assert_eq!(
        said(&cli, "dock-a-evil"),
        json!({
            "root": "EROFS", "scenario": "EROFS", "call": "ENETUNREACH", "become root": "EPERM", "mount": "EPERM",
            "fill": "ENOSPC", "fork": "EAGAIN",
        })
    );
    let left = cli.result("run", "dock-a-evil/bare.async")["process"]["left_behind"].as_array().map_or(0, Vec::len);
    assert!((900..1024).contains(&left), "{left} processes of the bomb were left and named");
    assert!(ran.text().contains("left processes behind"), "{}", ran.text());
    let result = cli.result("run", "dock-b-good/bare.async");
    assert_eq!(result["outcome"]["verdict"], json!({ "exact": "fault" }), "{result:#}");
}

#[test]
fn a_deadline_ends_the_case_and_its_container() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    cli.scenario("dock-deadline", &faulty("os.fork()\nprint('here', flush=True)\ntime.sleep(1000)"));
    run(&cli, &["dock-deadline", "--timeout", "3"]).expect(1);
    let result = cli.result("run", "dock-deadline/bare.async");
    assert_eq!(result["outcome"], json!({ "kind": "timed-out", "after_s": 3.0 }));
    assert_eq!(cli.read("run/cases/dock-deadline/bare.async/stdout"), b"here\nhere\n");
    HERE.gone("dock-deadline");
}

#[test]
fn a_case_that_uses_up_its_memory_is_told_apart() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    // More than what the container may have, wherever this runs; it never gets there.
    let eat = "eaten = []\nwhile True:\n    eaten.append(b'x' * (16 << 20))";
    cli.scenario("dock-memory", &faulty(eat));
    run(&cli, &["dock-memory", "--memory", "256"]).expect(3);
    let outcome = cli.result("run", "dock-memory/bare.async")["outcome"].clone();
    assert_eq!(outcome["kind"], json!("infra"), "{outcome:#}");
    let why = "the kernel killed a process of the case, which had used up the container's memory: the limit is 256 MiB";
    assert_eq!(outcome["reason"], json!(why));
    HERE.gone("dock-memory");
}

#[test]
fn signals_and_floods_come_through() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    let flood = "for n in range(300000):\n    print(n)\nsys.stdout.flush()\nos.kill(os.getpid(), 11)";
    cli.scenario("dock-flood", &faulty(flood));
    run(&cli, &["dock-flood", "--output-cap", "65536"]).expect(1);
    let result = cli.result("run", "dock-flood/bare.async");
    assert_eq!(result["process"]["exit"], json!({ "signal": "SIGSEGV" }));
    let text = String::from_utf8(cli.read("run/cases/dock-flood/bare.async/stdout")).expect("text");
    assert!(text.len() < 70_000 && text.starts_with("0\n1\n") && text.ends_with("299998\n299999\n"), "{}", text.len());
    assert_eq!(result["process"]["stdout"]["bytes"], json!(1_988_890));
}

#[test]
fn killed_from_outside_is_infrastructure_and_can_be_resumed() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    // Whoever runs the first time waits to be killed; a file of the scenario tells the second time.
    cli.scenario("dock-killed", &faulty("if not os.path.exists('/scenario/again'):\n    time.sleep(1000)"));
    let child = start(&cli, &["dock-killed"]);
    docker(&["kill", &HERE.running("dock-killed")]);
    let ran = finish(child).expect(3);
    assert!(ran.text().contains("the container ended before its case did"), "{}", ran.text());
    HERE.gone("dock-killed");
    cli.write("scenarios/dock-killed/again", "");
    cli.run(&["run", "--resume", "run"]).expect(0);
    let result = cli.result("run", "dock-killed/bare.async");
    assert_eq!(result["outcome"]["verdict"], json!({ "exact": "fault" }), "{result:#}");
}

#[test]
fn faultlab_killed_leaves_nothing_and_can_be_resumed() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    cli.scenario("dock-kill9-a", &faulty(""));
    cli.scenario("dock-kill9-b", &faulty("if not os.path.exists('/scenario/again'):\n    time.sleep(1000)"));
    let mut child = start(&cli, &["dock-kill9-a", "dock-kill9-b"]);
    HERE.running("dock-kill9-b");
    child.kill().expect("a signal");
    child.wait().expect("faultlab ends");
    // Its input is closed: the container ends and is removed without any sweep.
    HERE.gone("dock-kill9-b");
    cli.write("scenarios/dock-kill9-b/again", "");
    let ran = cli.run(&["run", "--resume", "run"]).expect(0);
    assert!(!ran.stderr.contains("dock-kill9-a bare async"), "a finished case stays: {}", ran.stderr);
    for scenario in ["dock-kill9-a", "dock-kill9-b"] {
        assert_eq!(cli.result("run", &format!("{scenario}/bare.async"))["outcome"]["kind"], json!("judged"));
    }
}

#[test]
fn the_sweep_takes_only_what_is_over() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    cli.scenario("dock-live", &faulty("time.sleep(1000)"));
    let live = start(&cli, &["dock-live"]);
    let id = HERE.running("dock-live");
    let owner = docker(&["inspect", "--format", "{{index .Config.Labels \"faultlab.owner\"}}", &id]);
    // The same place, and a process that is not there (ids end below this one).
    let place = owner.split('/').next().expect("a place").to_string();
    let dead = format!("faultlab.owner={place}/4194305/1");
    let create = |labels: &[&str]| {
        let mut args = vec!["create", "--network", "none"];
        args.extend(labels.iter().flat_map(|label| ["--label", label]));
        args.extend([IMAGE, "python3"]);
        docker(&args)
    };
    let over = create(&["managed-by=faultlab", "faultlab.run=gone", &dead]);
    let foreign = create(&["managed-by=faultlab-test", "faultlab.run=gone", &dead]);
    let other = Cli::new();
    other.scenario("dock-sweeper", &faulty(""));
    run(&other, &["dock-sweeper"]).expect(0);
    let all = docker(&["ps", "--all", "--quiet", "--no-trunc"]);
    docker(&["rm", &foreign]);
    assert!(!all.contains(&over), "left by a run that is over");
    assert!(all.contains(&foreign), "not faultlab's");
    assert!(all.contains(&id), "of a run that lives");
    send(&live, Signal::SIGTERM);
    finish(live).expect(3);
}

#[test]
fn without_image_gpu_or_engine_it_says_what_is_missing() {
    if !ready() {
        return;
    }
    let cli = Cli::new();
    cli.scenario("dock-none", &faulty(""));
    let ran = cli.run_cpu(&["dock-none", "--backend", "docker", "--image", "faultlab-test:nowhere"]).expect(3);
    assert!(ran.stderr.contains("there is no image faultlab-test:nowhere here"), "{}", ran.stderr);
    cli.run_cpu(&["dock-none", "--backend", "docker"]).expect(2);
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        let ran = cli.run(&[&["run", "dock-none"], DOCKER].concat()).expect(3);
        assert!(ran.stderr.contains("no way to give a container a GPU"), "{}", ran.stderr);
    }
    let cli = cli.env("DOCKER_HOST", "unix:///nowhere/docker.sock");
    let ran = run(&cli, &["dock-none"]).expect(3);
    assert!(ran.stderr.contains("no container engine"), "{}", ran.stderr);
}
