//! The injected modules of the tools that watch (op-log, profiler, deterministic, cpp-log, csan, dsa, sync-debug) under
//! a real Python: `FAULTLAB_TEST_PYTHON` names one with torch, else it is `python3`. Without torch the tests say so.

#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::print_stderr, reason = "a skipped test says why")]
#![expect(clippy::disallowed_methods, reason = "starts Python, as a user would")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const RUNTIME: &str = include_str!("../src/tool/inject/sitecustomize.py");

/// What a program left under a tool.
struct Left {
    stderr: String,
    active: Vec<String>,
    reports: Vec<Value>,
}

fn python() -> String {
    std::env::var("FAULTLAB_TEST_PYTHON").unwrap_or_else(|_| "python3".into())
}

fn has_torch() -> bool {
    let version = "import torch; assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 6), torch.__version__";
    let found = Command::new(python()).args(["-c", version]).output();
    let found = found.is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: {} has no torch 2.6 or later (set FAULTLAB_TEST_PYTHON)", python());
    }
    found
}

fn run(tool: &str, program: &str, env: &[(&str, &str)], stub: Option<&str>) -> Left {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path();
    let write = |name: &str, text: &str| {
        let path = work.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("inject/sitecustomize.py", RUNTIME);
    write("inject/faultlab_tool.py", tool);
    write("train.py", program);
    if let Some(stub) = stub {
        write("torch/__init__.py", stub);
    }
    let output = Command::new(python())
        .arg(work.join("train.py"))
        .env("PYTHONPATH", work.join("inject"))
        .env("FAULTLAB_INJECT", work)
        .env("CUDA_VISIBLE_DEVICES", "")
        .env_remove("CUDA_LAUNCH_BLOCKING")
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let lines = |name: &str| -> Vec<Value> {
        let text = std::fs::read_to_string(Path::new(work).join(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    Left {
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        active: lines("active.jsonl").iter().map(|a| a["detail"].as_str().unwrap_or_default().to_string()).collect(),
        reports: lines("reports.jsonl"),
    }
}

const OP_LOG: &str = include_str!("../src/tool/inject/op_log.py");

const SHAPE: &str = "import torch\n\ndef f(a, b):\n    return a @ b\n\nf(torch.ones(2, 3), torch.ones(2, 3))\n";

/// Plays a GPU on a machine that has none: what op-log asks of CUDA is answered here, and the first read fails.
const ASYNC: &str = r#"import torch

# A machine without a GPU plays one: what op-log asks CUDA for is answered here.
torch.cuda._initialized = True
torch._C._cuda_getDevice = lambda: 0
torch._C._cuda_getCurrentRawStream = lambda device: 0


class Dead(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_local_scalar_dense" in str(func):
            raise RuntimeError("CUDA error: device-side assert triggered")
        return func(*args, **(kwargs or {}))


def step(weight, x):
    loss = torch.nn.functional.nll_loss((x @ weight).log_softmax(1), torch.tensor([0, 1]))
    loss.backward()
    return loss.item()


# Below op-log on the stack of modes, as the device is.
stack = [torch._C._pop_torch_dispatch_stack(None) for _ in range(torch._C._len_torch_dispatch_stack())]
torch._C._push_on_torch_dispatch_stack(Dead())
for mode in reversed(stack):
    torch._C._push_on_torch_dispatch_stack(mode)
step(torch.ones(3, 2, requires_grad=True), torch.ones(2, 3))
"#;

#[test]
fn op_log_claims_an_operations_own_error() {
    if !has_torch() {
        return;
    }
    let left = run(OP_LOG, SHAPE, &[], None);
    assert_eq!(left.reports.len(), 1, "{}", left.stderr);
    let report = &left.reports[0];
    assert_eq!(report["note"], false);
    assert_eq!(report["module"], "aten.mm.default");
    assert_eq!(report["python"].as_array().unwrap().last().unwrap()["line"], 4);
    assert!(left.active.iter().any(|d| d.ends_with("operations were logged")));
}

#[test]
fn op_log_claims_a_cuda_error_only_in_sync_mode() {
    if !has_torch() {
        return;
    }
    let claims = |left: &Left| left.reports.iter().filter(|r| r["note"] == false).count();
    let left = run(OP_LOG, ASYNC, &[], None);
    assert_eq!(claims(&left), 0, "{}", left.stderr);
    assert!(left.reports.len() > 3);
    assert_eq!(claims(&run(OP_LOG, ASYNC, &[("CUDA_LAUNCH_BLOCKING", "1")], None)), 1);
}

#[test]
fn a_clean_program_and_its_results_are_left_alone() {
    if !has_torch() {
        return;
    }
    let program = "import torch\ntorch.manual_seed(0)\nm = torch.nn.Linear(3, 1)\nm(torch.ones(2, 3)).sum().backward()\n\
                   import sys; print(m.weight.grad.tolist(), file=sys.stderr)\n";
    for tool in [
        OP_LOG,
        include_str!("../src/tool/inject/profiler.py"),
        include_str!("../src/tool/inject/deterministic.py"),
        include_str!("../src/tool/inject/sync_debug.py"),
        include_str!("../src/tool/inject/cpp_log.py"),
        include_str!("../src/tool/inject/dsa.py"),
        include_str!("../src/tool/inject/csan.py"),
    ] {
        let left = run(tool, program, &[], None);
        assert!(left.reports.is_empty(), "{:?}", left.reports);
        assert!(!left.active.is_empty());
        // Not alone: without a GPU Kineto complains of that.
        assert!(left.stderr.lines().any(|line| line == "[[2.0, 2.0, 2.0]]"), "{}", left.stderr);
    }
}

#[test]
fn the_profile_has_the_last_operations() {
    if !has_torch() {
        return;
    }
    let left =
        run(include_str!("../src/tool/inject/profiler.py"), &SHAPE.replace("a @ b", "torch.mm(a, b)"), &[], None);
    assert!(left.active.iter().any(|d| d.ends_with("on record")), "{:?} {}", left.active, left.stderr);
    let last = &left.reports[0];
    assert_eq!(last["module"], "aten::mm");
    assert_eq!(last["python"][0]["line"], 4);
    assert!(left.reports.iter().all(|r| r["note"] == true));
}

#[test]
fn the_log_level_is_read_back() {
    if !has_torch() {
        return;
    }
    let tool = include_str!("../src/tool/inject/cpp_log.py");
    assert_eq!(
        run(tool, "import torch\n", &[("TORCH_CPP_LOG_LEVEL", "INFO")], None).active,
        ["c10's log level is INFO"]
    );
    // The wrong variable.
    assert_ne!(run(tool, "import torch\n", &[("TORCH_LOG_LEVEL", "INFO")], None).active, ["c10's log level is INFO"]);
}

/// A torch that only has what sync-debug touches; it warns as PyTorch does.
const STUB: &str = r#"
import sys, types, warnings
__version__ = "2.6.0"

class _C:
    mode = 0
    def _cuda_set_sync_debug_mode(mode):
        _C.mode = mode
    def _cuda_get_sync_debug_mode():
        return _C.mode

class cuda:
    queued = []
    def _lazy_call(call):
        cuda.queued.append(call)

def item():
    while cuda.queued:
        cuda.queued.pop()()
    if _C.mode:
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=2)
"#;

#[test]
fn waits_are_noted_once_a_line_and_not_printed() {
    let program = "import warnings\nimport torch\n\ndef step():\n    torch.item()\n\nfor _ in range(3):\n    step()\n\
                   torch.item()\nwarnings.warn('the program has its own')\n";
    let left = run(include_str!("../src/tool/inject/sync_debug.py"), program, &[], Some(STUB));
    let own = |frame: &&Value| frame["file"].as_str().unwrap().ends_with("train.py");
    let lines: Vec<_> = left
        .reports
        .iter()
        .map(|r| r["python"].as_array().unwrap().iter().rfind(own).unwrap()["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [5, 9], "{}", left.stderr);
    assert!(left.reports.iter().all(|r| r["note"] == true));
    assert!(
        left.stderr.contains("the program has its own") && !left.stderr.contains("synchronizing"),
        "{}",
        left.stderr
    );
    assert_eq!(left.active, ["waiting for CUDA to be initialised", "torch.cuda's sync debug mode is 1"]);
}
