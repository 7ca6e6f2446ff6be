"""Starts the launch recorder's Python side in the user's own interpreter; the user's program is not edited.

Python imports `sitecustomize` at start-up, before the program. This one runs the one that it stands before, then leaves
finders on `sys.meta_path` that wait for the modules of torch that the recorder has to look into. A program that never
imports torch pays for one dictionary look-up an import.

Environment:
- FAULTLAB_RECORDER_DIR      folder of the files that are written; nothing is started without it
- FAULTLAB_RECORDER_COMPILE  `0`: leave Inductor alone
- FAULTLAB_RECORDER_NAN      `1`: check modules for values that are not finite, `ops`: check every operator
- FAULTLAB_RECORDER_STACKS   number of a signal on which the stacks of all threads are written
- CUDA_INJECTION64_PATH      where it names the recorder, that gives way to torch.profiler: only one can use CUPTI
"""
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


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


def _compile_worker():
    """Whether this process only compiles kernels for another one (Inductor's subprocess pool)."""
    argv = getattr(sys, "orig_argv", sys.argv if hasattr(sys, "argv") else [])
    return any(os.path.join("_inductor", "compile_worker") in a for a in argv)


def _start():
    if not os.environ.get("FAULTLAB_RECORDER_DIR") or _compile_worker():
        return
    if HERE not in sys.path:
        sys.path.append(HERE)
    signum = os.environ.get("FAULTLAB_RECORDER_STACKS", "")
    if signum.isdecimal():
        import faultlab_stacks

        faultlab_stacks.install(int(signum))
    if os.environ.get("CUDA_INJECTION64_PATH"):
        import faultlab_profiler

        faultlab_profiler.install()
    if os.environ.get("FAULTLAB_RECORDER_COMPILE", "1") != "0":
        import faultlab_compile

        faultlab_compile.install()
    nan = os.environ.get("FAULTLAB_RECORDER_NAN", "0")
    if nan not in ("", "0"):
        import faultlab_nan

        faultlab_nan.install(nan)


if __name__ == "sitecustomize":
    _restore()
    try:
        _start()
    except Exception as error:  # the program comes first
        sys.stderr.write(f"faultlab: the recorder's Python side could not be started: {error!r}\n")
