"""Starts a faultlab tool inside the user's own interpreter; the user's program is not edited.

Python imports `sitecustomize` at start-up, before the program. This one puts the interpreter's own back in its place,
then waits for the program to import torch, and only then starts the tool: `faultlab_tool.activate(torch)`.

Files, all in $FAULTLAB_INJECT, the case's working directory:
- active.jsonl    a line for each process in which the tool started: the proof that it was on
- reports.jsonl   a line for each thing that the tool has to say
"""
import importlib.abc
import importlib.util
import json
import os
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.environ.get("FAULTLAB_INJECT", HERE)
LIMIT = 1000  # reports a process writes at most
_lock = threading.Lock()
_written = 0


def write(name, record):
    """Appends one line; a single write, so that processes do not mix theirs."""
    line = json.dumps(record, default=str) + "\n"
    with open(os.path.join(FOLDER, name), "a", encoding="utf-8") as file:
        file.write(line)


def frames(frame=None, skip=1):
    """The Python frames of the caller, outermost first, without the tool's own."""
    frame = frame or sys._getframe(skip)
    found = []
    while frame is not None and len(found) < 200:
        code = frame.f_code
        if os.path.dirname(os.path.abspath(code.co_filename)) != HERE:
            found.append({"file": code.co_filename, "line": frame.f_lineno or 0, "function": code.co_name})
        frame = frame.f_back
    return found[::-1]


def traceback_frames(traceback):
    """The frames of an exception's traceback, outermost first, without the tool's own."""
    found = []
    while traceback is not None and len(found) < 200:
        code = traceback.tb_frame.f_code
        if os.path.dirname(os.path.abspath(code.co_filename)) != HERE:
            found.append({"file": code.co_filename, "line": traceback.tb_lineno or 0, "function": code.co_name})
        traceback = traceback.tb_next
    return found


def report(message, python=(), values=(), error_type=None, module=None, note=False):
    """Says one thing. `values`: the offending values, in words. `note`: context, not a claim about the fault."""
    global _written
    with _lock:
        _written += 1
        if _written > LIMIT:
            return
        write("reports.jsonl", {
            "pid": os.getpid(), "message": str(message), "python": list(python), "values": [str(v) for v in values],
            "error_type": error_type, "module": module, "note": note,
        })


def _restore():
    """Runs the sitecustomize that this one stands before, if there is one (Debian and Ubuntu have one)."""
    # Behind this folder only: one before it has had its turn, and may be what runs this one now.
    mine = [place for place, p in enumerate(sys.path) if os.path.abspath(p or os.curdir) == HERE]
    path = sys.path[mine[-1] + 1:] if mine else sys.path
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec and spec.loader:
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception:  # as `site` does: a broken one must not stop the program
            pass


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once a module has been imported."""

    def __init__(self, name, callback):
        self.name, self.callback = name, callback

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run, callback = spec.loader.exec_module, self.callback

        def exec_module(module):
            run(module)
            callback(module)

        spec.loader.exec_module = exec_module
        return spec


def _start(torch):
    import faultlab_tool

    detail = faultlab_tool.activate(torch)
    write("active.jsonl", {"pid": os.getpid(), "torch": torch.__version__, "detail": detail})


if __name__ == "sitecustomize":
    _restore()
    sys.modules["faultlab_inject"] = sys.modules[__name__]
    sys.meta_path.insert(0, _AfterImport("torch", _start))
