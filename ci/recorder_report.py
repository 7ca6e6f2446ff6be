"""Reads what the launch recorder wrote about a process tree and says which line of a program it names.

The format is harness/recorder/src/format.rs; the rules here are those of harness/src/tool/recorder.rs. Standard library
only, Python 3.10 or later.
"""
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

# What a CUDA error looks like in a program's output when the device, and not the host, is at fault.
DEVICE_FAULTS = re.compile(
    "device-side assert triggered|an illegal memory access was encountered|misaligned address"
    "|operation not supported on global/shared address space|unspecified launch failure|an illegal instruction"
    "|invalid program counter|hardware stack error|the launch timed out"
    "|CUDA_ERROR_(?:ASSERT|ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|LAUNCH_FAILED|ILLEGAL_INSTRUCTION"
    "|INVALID_PC|HARDWARE_STACK_ERROR|LAUNCH_TIMEOUT)"
)
ASSERTION = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+): (?P<function>.*?): block: \[", re.MULTILINE)


def library_beside(faultlab):
    """The recorder's library, where cargo puts it: beside the executable."""
    return Path(faultlab).resolve().parent / "libfaultlab_recorder.so"


def environment(library, folder, markers="adaptive", hang=0, shim=None, base=None):
    """The environment that turns the recorder on. `hang` in seconds, 0 is off; `shim` goes before PYTHONPATH."""
    env = dict(os.environ if base is None else base)
    env.update(
        CUDA_INJECTION64_PATH=str(library),
        FAULTLAB_RECORDER_DIR=str(folder),
        FAULTLAB_RECORDER_MARKERS=markers,
        FAULTLAB_RECORDER_HANG=str(hang),
    )
    if shim:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(shim), env.get("PYTHONPATH")]))
    return env


def records(folder):
    """All records of all processes, each process in its order. A line that is none (cut off by a kill) is passed over."""
    found = []
    for path in sorted(Path(folder).glob("recorder.*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                found.append(record)
    return found


def innermost(frames, own):
    """The line of the innermost frame for which `own(file)` holds. Frames come innermost first."""
    return next((f["line"] for f in frames or [] if f.get("line") and own(f.get("file", ""))), None)


def line_of(launch, own):
    """The line of the program that stands for a launch, and what it is: `source` (of a generated kernel), `forward` (of a
    backward launch without Python of its own) or `frame`; (None, None) where there is none."""
    frames = launch.get("frames") or []
    source = next((f["line"] for f in launch.get("source") or [] if f.get("line") and own(f.get("file", ""))), None)
    if source is not None:
        return source, "source"
    line = innermost(frames, own)
    forward = innermost((launch.get("forward") or {}).get("frames"), own)
    # The engine's frame is the innermost where autograd runs on the calling thread: the rest is who called backward().
    engine = bool(frames) and frames[0].get("function", "").endswith("_engine_run_backward")
    if forward is not None and (line is None or engine):
        return forward, "forward"
    return line, "frame" if line is not None else None


def kernel_of(launch):
    """The kernel: of a graph the node's, where it is known."""
    return ((launch.get("node") or {}).get("captured") or launch).get("kernel", "")


def matching(launches, text):
    """The launches whose kernel is the one of the assertion in `text`: by the function's name; for a lambda by the name of
    its source file; for generated Python by being no C++ kernel."""
    for at in ASSERTION.finditer(text):
        function, file = at["function"], at["file"]
        name = re.match(r"[\w:~]+", function.split("(")[0].split(" ")[-1])
        name = name[0].split("::")[-1] if name else ""
        if file.endswith(".py"):
            fits = lambda kernel: re.fullmatch(r"\w+", kernel) is not None
        elif name and name not in ("operator", "unknown"):
            fits = lambda kernel, name=name: re.search(rf"\b{re.escape(name)}\b", kernel) is not None
        else:
            stem = Path(file).stem.removesuffix("Kernel").removesuffix("Kernels")
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
            fits = lambda kernel, words=words: re.search(rf"(?<![a-z]){re.escape(words)}(?![a-z])", kernel) is not None
        found = [launch for launch in launches if fits(kernel_of(launch))]
        if found:
            return found
    return []


@dataclass
class Word:
    """What the recorder said of a program."""

    active: bool = False
    kind: str = "silent"  # silent, fault, hang, unlocated
    lines: list = field(default_factory=list)  # of the candidates that are left, the likeliest first; None: no line
    how: str = ""  # frame, forward, source
    kernel: str = ""
    captured: int | None = None  # the line that captured the graph's node
    joined: bool = False  # the assertion's text decided between candidates
    notes: list = field(default_factory=list)

    @property
    def line(self):
        return self.lines[0] if self.lines else None

    @property
    def sure(self):
        return self.kind in ("fault", "hang") and len(set(self.lines)) == 1 and self.line is not None

    def against(self, truth):
        """`exact`, `candidate` (it is one of several), `wrong`, `unlocated`, `silent` or `inactive`."""
        if self.kind == "silent":
            return "silent" if self.active else "inactive"
        if self.line is None and not any(self.lines):
            return "unlocated"
        if self.sure and self.line == truth:
            return "exact"
        return "candidate" if truth in self.lines else "wrong"

    def shown(self):
        if self.kind == "silent":
            return "silent" if self.active else "inactive"
        lines = list(dict.fromkeys("?" if line is None else str(line) for line in self.lines))
        text = "/".join(lines) or "?"
        if self.kind == "hang":
            text += " (hang)"
        if self.captured is not None:
            text += f" (captured {self.captured})"
        return text


def word(all_records, text, own):
    """The first fault, else the last hang. `text` is the program's standard error, `own(file)` tells its files."""
    said = Word(active=any(r.get("type") == "active" for r in all_records))
    said.notes = [r.get("message", "") for r in all_records if r.get("type") == "notice"]
    fault = next((r for r in all_records if r.get("type") == "fault"), None)
    hang = next((r for r in reversed(all_records) if r.get("type") == "hang"), None)
    if fault:
        launches = fault.get("culprits") or []
        said.kind = "fault" if launches else "unlocated"
        if fault.get("confidence") == "candidates" and len(launches) > 1:
            decided = matching(launches, text)
            if len(decided) == 1:
                launches, said.joined = decided, True
        elif fault.get("confidence") == "exact":
            launches = launches[:1]
    elif hang:
        launches = hang.get("running") or []
        said.kind = "hang" if launches else "unlocated"
    else:
        return said
    places = [line_of(launch, own) for launch in launches]
    said.lines = [line for line, _ in places]
    if launches:
        said.how, said.kernel = places[0][1] or "", kernel_of(launches[0])
        node = launches[0].get("node")
        if node:
            said.captured = line_of(node.get("captured") or {}, own)[0]
    return said


def traceback_line(text, own):
    """The innermost line of the program in the last traceback of a text."""
    head = "Traceback (most recent call last):"
    if head not in text:
        return None
    last = None
    for at in re.finditer(r'^\s*File "([^"\n]+)", line (\d+)', text[text.rindex(head):], re.MULTILINE):
        if own(at[1]):
            last = int(at[2])
    return last


def table(rows, head):
    """Markdown, in columns."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    line = lambda cells: "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths)) + " |"
    return "\n".join([line(head), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)])
