//! The layered tools and the breakpoint client under a real Python: what they say of small programs, and that they stay
//! silent where nothing is wrong. `FAULTLAB_TEST_PYTHON` names an interpreter with torch, else it is `python3`; without
//! torch the tests that want it are left out, and say so. Nothing here needs a GPU: where the device must fail, the
//! program puts a stand-in into `torch.cuda`.

#![expect(clippy::disallowed_methods, reason = "a test may start an interpreter and read its environment")]
#![expect(clippy::print_stderr, reason = "a test that is left out says why")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

type Test = Result<(), Box<dyn std::error::Error>>;

const INJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tool/inject");

fn python() -> String {
    std::env::var("FAULTLAB_TEST_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Does it have a module? Says so if not.
fn has(module: &str) -> bool {
    let check = format!(
        "import {module}, sys\nif '{module}' == 'torch': sys.exit(tuple(map(int, torch.__version__.split('.')[:2])) < (2, 6))"
    );
    let found = Command::new(python()).args(["-c", &check]).output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("left out: {} has no {module} (2.6 or later, if it is torch)", python());
    }
    found
}

/// A program under a tool: its output, and the tool's reports.
struct Ran {
    output: Output,
    reports: Vec<serde_json::Value>,
    active: String,
}

impl Ran {
    /// (message, the innermost line in the program, the values), of what is no note.
    fn claims(&self) -> Vec<(String, u64, String)> {
        let claims = self.reports.iter().filter(|r| r["note"] == false);
        claims
            .map(|r| {
                let frames = r["python"].as_array().cloned().unwrap_or_default();
                let own = frames.iter().rev().find(|f| f["file"].as_str().unwrap_or_default().ends_with("prog.py"));
                let line = own.and_then(|f| f["line"].as_u64()).unwrap_or(0);
                (r["message"].as_str().unwrap_or_default().to_string(), line, r["values"].to_string())
            })
            .collect()
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

fn read(folder: &Path, output: Output) -> Result<Ran, Box<dyn std::error::Error>> {
    let text = fs::read_to_string(folder.join("reports.jsonl")).unwrap_or_default();
    let reports = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok(Ran { output, reports, active: fs::read_to_string(folder.join("active.jsonl")).unwrap_or_default() })
}

/// Runs `program` (in `prog.py`) with the injected `tool`; `stub`: the text of a stand-in for torch.
fn run(tool: &str, program: &str, env: &[(&str, &str)], stub: Option<&str>) -> Result<Ran, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    for made in ["inject", "prog", "stub/torch"] {
        fs::create_dir_all(at(made))?;
    }
    for (from, to) in
        [("sitecustomize.py", "sitecustomize.py"), (tool, "faultlab_tool.py"), ("layers.py", "faultlab_layers.py")]
    {
        fs::copy(Path::new(INJECT).join(from), at("inject").join(to))?;
    }
    fs::write(at("prog/prog.py"), program)?;
    let mut path = vec![at("inject")];
    if let Some(stub) = stub {
        fs::write(at("stub/torch/__init__.py"), stub)?;
        path.push(at("stub"));
    }
    let output = Command::new(python())
        .arg(at("prog/prog.py"))
        .env("PYTHONPATH", std::env::join_paths(path)?)
        .env("FAULTLAB_INJECT", folder.path())
        .env("CUDA_VISIBLE_DEVICES", "")
        .env_remove("CUDA_LAUNCH_BLOCKING")
        .envs(env.iter().copied())
        .output()?;
    read(folder.path(), output)
}

const LABELS: &str = "import torch
labels = torch.tensor([1, -100, 3, 10])
logits = torch.zeros(4, 10)
try:
    torch.nn.functional.cross_entropy(logits, labels)
except IndexError as error:
    print(type(error).__name__)
table = torch.zeros(5, 2)
for bad in ('table[torch.tensor([0, -6])]', 'table.gather(0, torch.tensor([[5, 0]]))',
            'torch.nn.functional.binary_cross_entropy(torch.tensor([1.5]), torch.tensor([1.0]))'):
    try:
        eval(bad)
    except (IndexError, RuntimeError):
        pass
";

#[test]
fn guard_names_the_offending_values() -> Test {
    if !has("torch") {
        return Ok(());
    }
    let ran = run("guard.py", LABELS, &[], None)?;
    let claims = ran.claims();
    assert!(ran.output.status.success(), "{}", ran.stderr());
    assert!(ran.active.contains("checks every element"), "{}", ran.active);
    assert_eq!(claims.len(), 4, "{claims:?}");
    assert_eq!((claims[0].1, claims[0].2.as_str()), (5, r#"["target[3] = 10"]"#));
    assert_eq!(claims[1].2, r#"["indices[0][1] = -6"]"#);
    assert_eq!(claims[2].2, r#"["index[0, 0] = 5"]"#);
    assert_eq!(claims[3].2, r#"["self[0] = 1.5"]"#);
    let raised = run("guard.py", LABELS, &[("FAULTLAB_GUARD_RAISE", "1")], None)?;
    assert!(String::from_utf8_lossy(&raised.output.stdout).contains("GuardError"), "{}", raised.stderr());
    Ok(())
}

#[test]
fn guard_is_silent_where_nothing_is_wrong() -> Test {
    if !has("torch") {
        return Ok(());
    }
    let program = "import torch
from torch.nn import functional as F
x = torch.randn(6, 4, requires_grad=True)
mask = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), float('-inf'))
F.cross_entropy(x @ x.T + mask, torch.tensor([0, 1, 2, -100, -100, 5])).backward()
x[torch.tensor([-1, -6])], x[x > 0], x.take(torch.tensor([-24, 23])), F.one_hot(torch.tensor([0, 3]), 4)
torch.multinomial(torch.tensor([0.0, 2.0]), 1), torch.bernoulli(torch.tensor([0.0, 1.0]))
F.embedding_bag(torch.tensor([[0, 5]]), x), torch.empty(0, dtype=torch.long)
x.detach().index_add_(0, torch.tensor([5]), torch.ones(1, 4)), x.half() @ x.half().T, torch.tensor(3)
";
    let ran = run("guard.py", program, &[], None)?;
    assert!(ran.output.status.success() && ran.stderr().is_empty(), "{}", ran.stderr());
    assert!(ran.reports.is_empty(), "{:?}", ran.reports);
    Ok(())
}

#[test]
fn isolate_names_the_forward_line_of_a_backward_nan() -> Test {
    if !has("torch") {
        return Ok(());
    }
    let program = "import torch
net = torch.nn.Linear(2, 2)
def distance(a):
    return a.pow(2).sum().sqrt()
x = torch.zeros(1, 2)
loss = distance(net(x) - net(x))
loss.backward()
";
    let ran = run("isolate.py", program, &[], None)?;
    let claims = ran.claims();
    assert_eq!(claims.len(), 1, "{claims:?} {}", ran.stderr());
    assert!(claims[0].0.starts_with("SqrtBackward0") || claims[0].0.starts_with("PowBackward0"), "{claims:?}");
    assert_eq!(claims[0].1, 4);
    Ok(())
}

#[test]
fn isolate_names_modules_and_shapes() -> Test {
    if !has("torch") {
        return Ok(());
    }
    let program = "import torch
from torch import nn
class Log(nn.Module):
    def forward(self, x):
        return x.log()
net = nn.Sequential(nn.Linear(2, 3), Log(), nn.ReLU(inplace=True))
nn.init.zeros_(net[0].weight)
nn.init.constant_(net[0].bias, -1.0)
try:
    net(torch.zeros(1, 5))
except RuntimeError:
    pass
net(torch.zeros(1, 2))
net(torch.zeros(1, 5))
";
    let ran = run("isolate.py", program, &[("FAULTLAB_ISOLATE_SHAPES", r#"{"0": [null, 4]}"#)], None)?;
    let claims = ran.claims();
    assert_eq!(claims.iter().map(|c| c.1).collect::<Vec<_>>(), [13, 13, 14], "{claims:?} {}", ran.stderr());
    assert!(claims[0].0.contains("declared is [None, 4]"), "{claims:?}");
    assert!(claims[1].0.starts_with("1 is the first module"), "{claims:?}");
    assert!(claims[2].0.starts_with("RuntimeError was raised in module 0"), "{claims:?}");
    Ok(())
}

/// The device fails in the second module call; the stand-in raises at the first wait after it.
const DEVICE: &str = "import torch
from torch import nn
broken = []
def synchronize(device=None):
    if broken:
        raise RuntimeError('CUDA error: device-side assert triggered')
torch.cuda.is_initialized = lambda: True
torch.cuda.is_current_stream_capturing = lambda: False
torch.cuda.synchronize = synchronize
class Breaks(nn.Module):
    def forward(self, x):
        broken.append(1)
        return x
good, bad = nn.Linear(2, 2), Breaks()
x = good(torch.zeros(1, 2))
y = bad(x)
torch.cuda.synchronize()
";

#[test]
fn isolate_brackets_an_asynchronous_error() -> Test {
    if !has("torch") {
        return Ok(());
    }
    let ran = run("isolate.py", DEVICE, &[], None)?;
    let claims = ran.claims();
    assert_eq!(claims.len(), 1, "{claims:?} {}", ran.stderr());
    assert_eq!(claims[0].1, 16, "{claims:?}");
    assert!(claims[0].0.starts_with("the device failed in the forward of Breaks"), "{claims:?}");
    assert!(ran.stderr().contains("RuntimeError: CUDA error"), "the program's own end is left to it");
    Ok(())
}

const STUB: &str = r#"
__version__ = "0.0"
broken = []
class AcceleratorError(RuntimeError): pass
class nn:
    class Parameter: pass
class Tensor: pass
class cuda:
    class OutOfMemoryError(RuntimeError): pass
    is_initialized = staticmethod(lambda: True)
    is_current_stream_capturing = staticmethod(lambda: False)
    @staticmethod
    def synchronize(device=None):
        if broken: raise AcceleratorError("CUDA error: device-side assert triggered")
def launch(bad=False):
    if bad: broken.append(1)
    return 1
def refuse():
    raise RuntimeError("shapes do not fit")
"#;

#[test]
fn checkpoints_name_the_line() -> Test {
    let program = |last: &str| {
        format!(
            "import torch
def inner(bad):
    x = torch.launch()
    y = torch.launch(bad)
    return x + y
def step(i):
    a = inner(False)
    return a + inner(i == 2)
def other():
    return inner(False) + torch.launch(True)
def rows():
    yield torch.launch()
    yield torch.launch(True)
{last}
torch.cuda.synchronize()
"
        )
    };
    for (last, line) in [
        ("for i in range(4): step(i)", 4),
        ("other()", 10),
        ("list(rows())", 13),
        ("torch.launch(step(0) > 0)", 14),
        ("torch.refuse()", 14),
    ] {
        let ran = run("checkpoints.py", &program(last), &[], Some(STUB))?;
        let claims = ran.claims();
        assert_eq!(claims.iter().map(|c| c.1).collect::<Vec<_>>(), [line], "{last}: {claims:?} {}", ran.stderr());
        assert!(ran.active.contains("waits after each line"), "{}", ran.active);
    }
    for silent in ["step(0)", "raise ValueError('a check of its own')"] {
        let ran = run("checkpoints.py", &program(silent), &[], Some(STUB))?;
        assert!(ran.claims().is_empty(), "{silent}: {:?}", ran.claims());
    }
    Ok(())
}

/// Runs `prog.py` under the breakpoint client.
fn debug(program: &str, breakpoints: &str) -> Result<Ran, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let prog = folder.path().join("prog.py");
    fs::write(&prog, program)?;
    fs::write(folder.path().join("breakpoints.json"), breakpoints)?;
    let output = Command::new(python())
        .arg(Path::new(INJECT).join("breakpoint.py"))
        .args([prog.as_os_str(), "3".as_ref()])
        .env("FAULTLAB_INJECT", folder.path())
        .output()?;
    read(folder.path(), output)
}

#[test]
fn a_breakpoint_stops_where_its_condition_holds() -> Test {
    if !has("debugpy") {
        return Ok(());
    }
    let program = "import sys
def step(i):
    print(i)
    return 1 // (3 - i)
for i in range(int(sys.argv[1]) + 1):
    step(i)
";
    let points = r#"[{"line": "return 1 //", "function": "step", "condition": "i == 3", "values": ["i", "nothing"]}]"#;
    let ran = debug(program, points)?;
    let claims = ran.claims();
    assert_eq!(claims.len(), 1, "{claims:?} {}", ran.stderr());
    assert_eq!(claims[0].1, 4);
    assert!(claims[0].2.contains("i = 3") && claims[0].2.contains("NameError"), "{claims:?}");
    assert!(ran.active.contains("1 of 1 breakpoints verified (prog.py:4)"), "{}", ran.active);
    assert_eq!(ran.output.status.code(), Some(1));
    assert!(ran.stderr().ends_with("ZeroDivisionError: integer division or modulo by zero\n"), "{}", ran.stderr());
    assert!(!ran.stderr().contains("frozen"), "{}", ran.stderr());
    assert_eq!(String::from_utf8_lossy(&ran.output.stdout), "0\n1\n2\n3\n");

    let never = debug("import sys\nx = 1\nprint(x)\n", r#"[{"line": "print(x)", "condition": "x > 1"}]"#)?;
    assert!(never.claims().is_empty() && never.output.status.success(), "{}", never.stderr());
    assert!(never.stderr().is_empty(), "{}", never.stderr());
    let broken = debug("import sys\nx = 1\nprint(x)\n", r#"[{"line": "print(x)", "condition": "nothing > 1"}]"#)?;
    assert!(broken.claims().is_empty() && broken.output.status.success(), "{}", broken.stderr());
    let unknown = debug("x = 1\n", r#"[{"line": "y = 1", "condition": "True"}]"#)?;
    assert!(unknown.active.is_empty() && unknown.stderr().contains("0 lines"), "{}", unknown.stderr());
    Ok(())
}

/// A tool of the harness and the recorder's Python side each bring a `sitecustomize`, and the interpreter has its own.
#[test]
fn every_sitecustomize_runs_once_whatever_stands_before() -> Test {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let shim = concat!(env!("CARGO_MANIFEST_DIR"), "/recorder/shim");
    for (from, to) in [(INJECT, "tool"), (shim, "recorder")] {
        fs::create_dir_all(at(to))?;
        for file in fs::read_dir(from)? {
            let file = file?;
            if file.path().extension().is_some_and(|e| e == "py") {
                // What is to be counted is how often each ran.
                let text = fs::read_to_string(file.path())?;
                let counted = format!("{text}\nimport sys\nsys.stderr.write('{to} ran\\n')\n");
                let counted = if file.file_name() == "sitecustomize.py" { counted } else { text };
                fs::write(at(to).join(file.file_name()), counted)?;
            }
        }
    }
    fs::write(at("tool/faultlab_tool.py"), "def activate(torch):\n    pass\n")?;
    fs::create_dir_all(at("own"))?;
    fs::write(at("own/sitecustomize.py"), "import sys\nsys.stderr.write('own ran\\n')\n")?;
    for order in
        [&["tool", "recorder", "own"][..], &["recorder", "tool", "own"], &["recorder", "tool", "recorder", "own"]]
    {
        let path = std::env::join_paths(order.iter().map(|name| at(name)))?;
        let output = Command::new(python())
            .args(["-c", "print('ok')"])
            .env("PYTHONPATH", path)
            .env("FAULTLAB_RECORDER_DIR", folder.path())
            .env("FAULTLAB_INJECT", folder.path())
            .output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let mut ran: Vec<&str> = stderr.lines().collect();
        ran.sort_unstable();
        assert_eq!(
            (ran, output.stdout.as_slice()),
            (vec!["own ran", "recorder ran", "tool ran"], &b"ok\n"[..]),
            "{order:?}"
        );
    }
    Ok(())
}
