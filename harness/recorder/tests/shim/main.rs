//! The recorder's Python side under a real Python. `FAULTLAB_TEST_PYTHON` names an interpreter with torch, else it is
//! `python3`; without torch the tests that want it are left out, and say so. Nothing here needs a GPU.
#![allow(clippy::disallowed_methods, reason = "a test starts interpreters, and is told which by the environment")]
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::print_stderr, reason = "a test that is left out says why")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

type Error = Box<dyn std::error::Error>;
type Test = Result<(), Error>;

const SHIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shim");
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shim");

fn python() -> String {
    std::env::var("FAULTLAB_TEST_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Is there a torch, of at least 2.`minor`? Says so if not.
fn torch(minor: u32) -> bool {
    let check =
        format!("import sys, torch; sys.exit(tuple(int(n) for n in torch.__version__.split('.')[:2]) < (2, {minor}))");
    let found = Command::new(python()).args(["-c", &check]).output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("left out: {} has no torch 2.{minor} or later (set FAULTLAB_TEST_PYTHON)", python());
    }
    found
}

/// Inductor generates Triton code for the CPU; see `compiled.py`.
const TRITON: &[(&str, &str)] = &[("TEST_BACKEND", "triton")];

/// A folder with a program, and what the program left behind.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Result<Self, Error> {
        let bench = Self { folder: tempfile::tempdir()? };
        for made in ["out", "program"] {
            fs::create_dir(bench.at(made))?;
        }
        Ok(bench)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> Test {
        let path = self.at("program").join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        Ok(fs::write(path, text)?)
    }

    /// Runs `program/main.py`. `shim`: with the recorder's Python side.
    fn run(&self, shim: bool, env: &[(&str, &str)]) -> Result<Output, Error> {
        fs::remove_dir_all(self.at("out"))?;
        fs::create_dir(self.at("out"))?;
        let mut path = vec![self.at("program")];
        if shim {
            path.insert(0, SHIM.into());
        }
        let output = Command::new(python())
            .arg(self.at("program").join("main.py"))
            .env_remove("FAULTLAB_RECORDER_NAN")
            .env("PYTHONPATH", std::env::join_paths(path)?)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("FAULTLAB_RECORDER_DIR", self.at("out"))
            .env("TORCHINDUCTOR_CACHE_DIR", self.at("cache"))
            .env("OMP_NUM_THREADS", "1")
            .envs(env.iter().copied())
            .output()?;
        Ok(output)
    }

    /// The objects of all files `<stem>.<pid>.jsonl`.
    fn records(&self, stem: &str) -> Result<Vec<Value>, Error> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.at("out"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(&format!("{stem}.")) {
                for line in fs::read_to_string(path)?.lines() {
                    found.push(serde_json::from_str(line)?);
                }
            }
        }
        Ok(found)
    }

    fn files(&self) -> Result<usize, Error> {
        Ok(fs::read_dir(self.at("out"))?.count())
    }
}

fn succeeded(output: &Output) -> Test {
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", output.status, text(&output.stderr)).into())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number of the line that ends in the comment `mark`.
fn line_of(program: &str, mark: &str) -> u64 {
    let wanted = format!("# {mark}");
    program.lines().zip(1..).find(|(line, _)| line.ends_with(&wanted)).map_or(0, |(_, number)| number)
}

/// (file name, line) of a source or a frame.
fn place(frame: &Value) -> (String, u64) {
    let file = Path::new(frame["file"].as_str().unwrap_or_default()).file_name().unwrap_or_default();
    (file.to_string_lossy().into_owned(), frame["line"].as_u64().unwrap_or(0))
}

#[test]
fn the_users_own_sitecustomize_runs_and_nothing_is_written() -> Test {
    let bench = Bench::new()?;
    bench.write("sitecustomize.py", "import os\nos.environ['OWN'] = 'ran'\n")?;
    bench.write("main.py", "import os, sys\nprint(os.environ['OWN'], 'torch' in sys.modules)\n")?;
    let output = bench.run(true, &[("FAULTLAB_RECORDER_NAN", "1")])?;
    succeeded(&output)?;
    assert_eq!(text(&output.stdout), "ran False\n");
    assert_eq!(text(&output.stderr), "");
    assert_eq!(bench.files()?, 0);
    Ok(())
}

#[test]
fn a_broken_sitecustomize_of_the_user_is_passed_over() -> Test {
    let bench = Bench::new()?;
    bench.write("sitecustomize.py", "raise ValueError('broken')\n")?;
    bench.write("main.py", "print('goes on')\n")?;
    let output = bench.run(true, &[])?;
    succeeded(&output)?;
    assert_eq!(text(&output.stdout), "goes on\n");
    Ok(())
}

/// SIGSTKFLT, which the fixture's programs send to themselves.
const STACKS: &[(&str, &str)] = &[("FAULTLAB_RECORDER_STACKS", "16")];

#[test]
fn on_a_signal_each_process_writes_its_stacks_into_a_file_of_its_own() -> Test {
    let bench = Bench::new()?;
    bench.write("other.py", "import sys\nsys.exit(0)\n")?;
    bench.write(
        "main.py",
        "import os, subprocess, sys, threading, time\n\
         def ask():\n    os.kill(os.getpid(), 16)\n\
         def idle():\n    time.sleep(60)\n\
         threading.Thread(target=idle, daemon=True).start()\n\
         child = os.fork()\n\
         if child == 0:\n    def forked():\n        ask()\n    forked()\n    sys.exit(0)\n\
         os.waitpid(child, 0)\n\
         subprocess.run([sys.executable, os.path.join(os.path.dirname(__file__), 'other.py')], check=True)\n\
         ask()\nprint(child)\n",
    )?;
    let output = bench.run(true, STACKS)?;
    succeeded(&output)?;
    assert_eq!(text(&output.stderr), "");
    let child = fs::read_to_string(bench.at("out").join(format!("stacks.{}.txt", text(&output.stdout).trim())))?;
    assert!(child.contains(" in forked") && !child.contains(" in idle"), "{child}");
    // The one that was not asked has left no file.
    assert_eq!(bench.files()?, 2);
    let mut all = String::new();
    for entry in fs::read_dir(bench.at("out"))? {
        all += &fs::read_to_string(entry?.path())?;
    }
    assert!(all.contains(" in idle"), "{all}");
    assert_eq!(all.matches(" in ask").count(), 2, "{all}");
    Ok(())
}

#[test]
fn a_program_that_closes_all_files_or_has_few_is_left_as_it_is() -> Test {
    let bench = Bench::new()?;
    bench.write(
        "main.py",
        "import os, resource\n\
         os.closerange(3, 256)\n\
         data = os.open('/dev/null', os.O_RDWR)\n\
         print(data < 256, os.listdir('/proc/self/fd') != [])\n",
    )?;
    let output = bench.run(true, STACKS)?;
    succeeded(&output)?;
    assert_eq!((text(&output.stdout).trim(), text(&output.stderr).trim()), ("True True", ""));
    // No such signal: nobody is asked, and nothing is said.
    let output = bench.run(true, &[("FAULTLAB_RECORDER_STACKS", "4096")])?;
    succeeded(&output)?;
    assert_eq!(text(&output.stderr), "");
    let limited = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" -c 'print(1)'", &python()])
        .env("PYTHONPATH", SHIM)
        .env("FAULTLAB_RECORDER_DIR", bench.at("out"))
        .envs(STACKS.iter().copied())
        .output()?;
    succeeded(&limited)?;
    assert_eq!((text(&limited.stdout).trim(), text(&limited.stderr).trim()), ("1", ""));
    Ok(())
}

#[test]
fn without_a_folder_nothing_is_started() -> Test {
    let bench = Bench::new()?;
    bench.write(
        "main.py",
        "import sys\nprint([type(f).__name__ for f in sys.meta_path if 'After' in type(f).__name__])\n",
    )?;
    let output = bench.run(true, &[("FAULTLAB_RECORDER_DIR", ""), ("FAULTLAB_RECORDER_NAN", "1")])?;
    succeeded(&output)?;
    assert_eq!(text(&output.stdout), "[]\n");
    Ok(())
}

/// A version of torch whose insides are others: the import works, the user is told, the program goes on.
#[test]
fn an_unknown_torch_is_left_alone() -> Test {
    let bench = Bench::new()?;
    bench.write("torch/__init__.py", "__version__ = '9.9.0'\n")?;
    bench.write("torch/_inductor/__init__.py", "")?;
    bench.write("torch/_inductor/codecache.py", "class PyCodeCache: pass\nanswer = 42\n")?;
    bench.write("torch/_inductor/graph.py", "class GraphLowering: pass\n")?;
    bench.write(
        "main.py",
        "import torch._inductor.codecache as c, torch._inductor.graph, importlib, sys\n\
         importlib.reload(c)\nprint(c.answer, c.__spec__.loader.__class__.__name__)\n",
    )?;
    let output = bench.run(true, &[("FAULTLAB_RECORDER_NAN", "ops")])?;
    succeeded(&output)?;
    assert_eq!(text(&output.stdout), "42 SourceFileLoader\n");
    let said = text(&output.stderr);
    for module in ["torch", "torch._inductor.codecache", "torch._inductor.graph"] {
        assert!(said.contains(&format!("faultlab: {module} could not be prepared")), "{said}");
    }
    Ok(())
}

/// The sources of the kernel whose name has all of `words`.
fn sources<'a>(kernels: &'a [Value], words: &[&str]) -> Result<&'a Value, Error> {
    let found: Vec<_> =
        kernels.iter().filter(|k| words.iter().all(|w| k["kernel"].as_str().unwrap_or_default().contains(w))).collect();
    match found[..] {
        [one] => Ok(one),
        _ => Err(format!("{} kernels have {words:?}: {kernels:#?}", found.len()).into()),
    }
}

fn check_kernels(kernels: &[Value], model: &str, from: &str) -> Test {
    let at = |mark| ("model.py".to_owned(), line_of(model, mark));
    let forward = sources(kernels, &["triton_poi_fused_index_mul_relu_sin"])?;
    assert_eq!(forward["from"], from);
    let first = &forward["sources"][0];
    assert_eq!((place(first), &first["op"], &first["bound"]), (at("gate"), &"aten.index.Tensor".into(), &"8".into()));
    assert_eq!(first["function"], "pick");
    assert_eq!(place(&forward["sources"][1]), at("sine"));

    let loss = &sources(kernels, &["nll_loss_forward_2"])?["sources"][0];
    assert_eq!((place(loss), &loss["bound"]), (at("loss"), &"16".into()));

    let backward = &sources(kernels, &["index_put"])?["sources"];
    assert_eq!(place(&backward[0]), at("gate"));
    assert!(backward.as_array().is_some_and(|s| s.iter().any(|s| place(s) == at("sine"))), "{backward:#}");

    // A launch that is no generated kernel, by its line: the frame of the launch has that line.
    let matmul = sources(kernels, &["extern_kernels.addmm"])?;
    assert_eq!(place(&matmul["sources"][0]), at("matmul"));
    for kernel in kernels {
        let generated = fs::read_to_string(kernel["generated"].as_str().unwrap_or_default())?;
        let name = kernel["kernel"].as_str().unwrap_or_default();
        let lines = kernel["lines"].as_array().cloned().unwrap_or_default();
        assert!(!lines.is_empty(), "{name}");
        for line in lines {
            let number = usize::try_from(line.as_u64().unwrap_or(0))?;
            let launch = generated.lines().nth(number - 1).unwrap_or_default();
            assert!(launch.contains(&format!("{name}.run(")) || launch.contains(&format!("{name}(")), "{launch}");
        }
    }
    Ok(())
}

#[test]
fn triton_kernels_have_the_lines_of_the_compiled_function() -> Test {
    if !torch(8) {
        return Ok(());
    }
    let bench = Bench::new()?;
    let model = fs::read_to_string(Path::new(HERE).join("model.py"))?;
    bench.write("main.py", &fs::read_to_string(Path::new(HERE).join("compiled.py"))?)?;
    bench.write("model.py", &model)?;
    let output = bench.run(true, TRITON)?;
    succeeded(&output)?;
    check_kernels(&bench.records("kernels")?, &model, "compile")?;

    // From Inductor's cache, without compiling.
    let output = bench.run(true, TRITON)?;
    succeeded(&output)?;
    let warm = bench.records("kernels")?;
    check_kernels(&warm, &model, "cache")?;

    // From the same cache after an edit above the function: the lines are those of the file as it is now.
    let edited = format!("# a comment\n\n{model}");
    bench.write("model.py", &edited)?;
    succeeded(&bench.run(true, TRITON)?)?;
    check_kernels(&bench.records("kernels")?, &edited, "cache")?;

    // Switched off.
    succeeded(&bench.run(true, &[TRITON[0], ("FAULTLAB_RECORDER_COMPILE", "0")])?)?;
    assert_eq!(bench.files()?, 0);
    Ok(())
}

#[test]
fn cpp_kernels_of_a_fresh_compilation_have_them_too() -> Test {
    if !torch(6) {
        return Ok(());
    }
    let bench = Bench::new()?;
    let model = fs::read_to_string(Path::new(HERE).join("model.py"))?;
    bench.write("main.py", &fs::read_to_string(Path::new(HERE).join("compiled.py"))?)?;
    bench.write("model.py", &model)?;
    succeeded(&bench.run(true, &[("TEST_BACKEND", "cpp")])?)?;
    let kernels = bench.records("kernels")?;
    let source = &sources(&kernels, &["cpp_fused_index_mul_relu_sin"])?["sources"][0];
    assert_eq!((place(source).1, &source["bound"]), (line_of(&model, "gate"), &"8".into()));
    Ok(())
}

/// A program, and what the check for NaN says of it at a level: the lines of the NaN and of its origin, by their marks.
struct Case {
    name: &'static str,
    level: &'static str,
    program: &'static str,
    nan: &'static str,
    root: Option<&'static str>,
    /// Part of the text.
    says: &'static str,
}

const NET: &str = "import torch, torch.nn as nn\ntorch.manual_seed(0)\n";

const CASES: &[Case] = &[
    Case {
        name: "an fp16 overflow becomes a NaN in the next norm",
        level: "1",
        program: "class Block(nn.Module):\n    def __init__(self, gain):\n        super().__init__()\n        \
            self.norm = nn.LayerNorm(32, elementwise_affine=False)\n        self.wide = nn.Linear(32, 32, bias=False)\n        \
            self.wide.weight.data.mul_(gain)\n    def forward(self, h):\n        h = self.norm(h)  # nan\n        \
            return h + self.wide(h)  # made\n\
            net = nn.Sequential(Block(1.0), Block(2e5), Block(1.0)).half()\nnet(torch.randn(4, 32).half())\n",
        nan: "nan",
        root: Some("made"),
        says: "`2.norm` (LayerNorm)",
    },
    Case {
        name: "a module makes it from finite inputs",
        level: "1",
        program: "class Root(nn.Module):\n    def forward(self, x):\n        return torch.sqrt(x)\n\
            net = nn.Sequential(nn.Linear(3, 3), Root())\nnet(torch.ones(2, 3) * -9)  # nan\n",
        nan: "nan",
        root: None,
        says: "`1` (Root), float32[2, 3]; its inputs were finite: it was made here",
    },
    Case {
        name: "code between modules makes it",
        level: "1",
        program: "a, b = nn.Linear(3, 3), nn.Linear(3, 3)\nx = a(torch.ones(2, 3))\nx = (x - 99).log()\nb(x)  # nan\n",
        nan: "nan",
        root: None,
        says: "an input of `Linear` (Linear)",
    },
    Case {
        name: "an update breaks a parameter",
        level: "1",
        program: "net = nn.Linear(3, 3)\nopt = torch.optim.SGD(net.parameters(), lr=1.0)\n\
            net(torch.ones(2, 3)).sum().backward()\nnet.weight.grad[0, 0] = float('nan')\nopt.step()\n\
            net(torch.ones(2, 3))  # nan\n",
        nan: "nan",
        root: None,
        says: "a parameter of `Linear` (Linear)",
    },
    Case {
        name: "it is made in the backward pass",
        level: "grad",
        program: "class Root(nn.Module):\n    def forward(self, x):\n        return torch.sqrt(x * 0) * 0\n\
            net = nn.Sequential(nn.Linear(3, 3), Root())\nnet(torch.ones(2, 3)).sum().backward()  # nan\n",
        nan: "nan",
        root: None,
        says: "the gradient of the output of `0` (Linear)",
    },
    Case {
        name: "an operator makes it",
        level: "ops",
        program: "w = torch.tensor([0.5, 1.5])\nx = torch.log(w - 1)  # nan\n(x * 3 + 1).sqrt().sum()\n",
        nan: "nan",
        root: None,
        says: "aten.log.default, float32[2]; its inputs were finite: it was made here",
    },
    Case {
        name: "a branch that torch.where did not pick",
        level: "ops",
        program: "w = torch.full((8,), 20.0, requires_grad=True)\nz = w * torch.arange(8.0)\n\
            grow = torch.exp(z)  # made\n\
            safe = torch.where(z > 30, z + 1, grow)\nsafe.log1p().mean().backward()\n",
        nan: "made",
        root: Some("made"),
        says: "in the backward pass (ExpBackward0); an input was infinite",
    },
    Case {
        name: "a second derivative",
        level: "ops",
        program: "x = torch.tensor([1.0, 0.0], requires_grad=True)\nw = torch.ones(2, requires_grad=True)\n\
            score = (x * w).abs().pow(1.5).sum()  # made\n\
            (g,) = torch.autograd.grad(score, x, create_graph=True)\n(g.pow(2).sum() - 1).pow(2).backward()\n",
        nan: "made",
        root: Some("made"),
        says: "(PowBackward0)",
    },
    Case {
        name: "two masks are added",
        level: "ops",
        program: "low = torch.finfo(torch.float16).min\na = torch.full((3,), low, dtype=torch.float16)\n\
            m = a + a  # made\nclean = torch.zeros(3, dtype=torch.float16).masked_fill(torch.tensor([True, False, False]), -torch.inf)\n\
            clean.softmax(-1)\nm.softmax(-1)  # nan\n",
        nan: "nan",
        root: Some("made"),
        says: "aten._softmax.default",
    },
];

#[test]
fn the_first_nan_is_named_with_its_origin() -> Test {
    if !torch(6) {
        return Ok(());
    }
    for case in CASES {
        let bench = Bench::new()?;
        let program = format!("{NET}{}", case.program);
        bench.write("main.py", &program)?;
        let output = bench.run(true, &[("FAULTLAB_RECORDER_NAN", case.level)])?;
        succeeded(&output).map_err(|e| format!("{}: {e}", case.name))?;
        let records = bench.records("nan")?;
        let nans: Vec<_> = records.iter().filter(|r| r["type"] == "nan").collect();
        let [nan] = nans[..] else {
            return Err(format!("{}: {records:#?}\n{}", case.name, text(&output.stderr)).into());
        };
        let line = |record: &Value| {
            let frames = if record["forward"].is_null() { &record["frames"] } else { &record["forward"] };
            place(&frames[0]).1
        };
        assert_eq!(line(nan), line_of(&program, case.nan), "{}: {nan:#}", case.name);
        assert_eq!(nan.get("root").map(line), case.root.map(|m| line_of(&program, m)), "{}: {nan:#}", case.name);
        let said = text(&output.stderr);
        assert!(said.contains("faultlab: the first NaN: ") && said.contains(case.says), "{}: {said}", case.name);
        assert_eq!(records.first().map(|r| &r["type"]), Some(&"start".into()), "{}", case.name);
        assert_eq!(records.last().map(|r| &r["type"]), Some(&"exit".into()), "{}", case.name);
    }
    Ok(())
}

/// Many parts of torch at once, nothing wrong with any: the output is the same as without, and nothing is claimed.
#[test]
fn a_healthy_program_is_not_changed() -> Test {
    if !torch(6) {
        return Ok(());
    }
    let bench = Bench::new()?;
    bench.write("main.py", &fs::read_to_string(Path::new(HERE).join("healthy.py"))?)?;
    let plain = bench.run(false, &[])?;
    succeeded(&plain)?;
    assert_eq!(bench.files()?, 0);
    for level in ["0", "1", "grad", "ops"] {
        let output = bench.run(true, &[("FAULTLAB_RECORDER_NAN", level)])?;
        succeeded(&output).map_err(|e| format!("{level}: {e}"))?;
        assert_eq!(text(&output.stdout), text(&plain.stdout), "{level}");
        assert!(!text(&output.stderr).contains("faultlab"), "{level}: {}", text(&output.stderr));
        let records = bench.records("nan")?;
        assert!(!records.iter().any(|r| r["type"] == "nan" || r["type"] == "inf"), "{level}: {records:#?}");
        let exit = records.iter().find(|r| r["type"] == "exit");
        assert_eq!(exit.is_some(), level != "0", "{level}");
        if let Some(exit) = exit {
            assert!(exit["checks"].as_u64() > Some(500) && exit["skipped"] == 0, "{level}: {exit}");
        }
    }
    Ok(())
}

/// What the driver is told to load may be another tool's, or may not be there: no profile is harmed, nothing is loaded for it.
#[test]
fn only_the_recorder_is_asked_to_give_way() -> Test {
    let bench = Bench::new()?;
    bench.write("torch/__init__.py", "")?;
    bench.write("torch/autograd/__init__.py", "")?;
    bench.write(
        "torch/autograd/profiler.py",
        "class ProfilerActivity:\n    CUDA = 2\ndef _enable_profiler(config, activities, scopes=()):\n    return config, activities, scopes\n",
    )?;
    bench.write(
        "main.py",
        "from torch.autograd import profiler\nprint(profiler._enable_profiler(1, {2}, scopes=(3,)))\n",
    )?;
    bench.write(
        "other.c",
        "#include <stdio.h>\n__attribute__((constructor)) static void on(void) { puts(\"loaded\"); }\n",
    )?;
    let other = bench.at("libother.so");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC"])
        .arg(bench.at("program/other.c"))
        .arg("-o")
        .arg(&other)
        .status()?;
    assert!(compiled.success());
    let missing = bench.at("libfaultlab_recorder.so");
    for library in [&other, &missing] {
        let output = bench.run(true, &[("CUDA_INJECTION64_PATH", library.to_str().unwrap_or_default())])?;
        succeeded(&output)?;
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("(1, {2}, (3,))\n", ""));
    }
    // Here the test can tell: a library that is taken for the recorder is loaded.
    fs::rename(&other, &missing)?;
    let output = bench.run(true, &[("CUDA_INJECTION64_PATH", missing.to_str().unwrap_or_default())])?;
    succeeded(&output)?;
    assert_eq!(text(&output.stdout), "loaded\n(1, {2}, (3,))\n");
    Ok(())
}

/// A version of torch whose profiler starts in another way: the user is told what may be missing, and the program goes on.
#[test]
fn an_unknown_profiler_is_left_alone() -> Test {
    let bench = Bench::new()?;
    bench.write("torch/__init__.py", "")?;
    bench.write("torch/autograd/__init__.py", "")?;
    bench.write("torch/autograd/profiler.py", "class ProfilerActivity:\n    CUDA = 2\n")?;
    bench.write("main.py", "from torch.autograd import profiler\nprint(profiler.ProfilerActivity.CUDA)\n")?;
    let library = [("CUDA_INJECTION64_PATH", "/nowhere/libfaultlab_recorder.so")];
    let output = bench.run(true, &library)?;
    succeeded(&output)?;
    assert_eq!(text(&output.stdout), "2\n");
    let said = text(&output.stderr);
    assert!(said.contains("torch.autograd.profiler could not be prepared") && said.contains("may miss"), "{said}");
    // By preload nothing of it is looked at.
    let output = bench.run(true, &[])?;
    succeeded(&output)?;
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("2\n", ""));
    Ok(())
}
