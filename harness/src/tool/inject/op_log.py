"""A log of the operations that pass torch's dispatcher, each with the Python line that called it.

It never waits for the GPU and keeps no tensor. What it has to say is written when the program ends in an error:
- an error that an operation raised on the host (a shape, an index on the CPU) or under CUDA_LAUNCH_BLOCKING=1: that
  operation, as a claim;
- a CUDA error in async mode: the operations that were started since the host last waited with success, as context. The
  fault is in one of them, and the log cannot tell in which.
"""
import atexit
import collections
import os
import sys

import faultlab_inject as faultlab

KEPT = 4096  # operations
LAST = 20  # lines that are noted at the end
DEEP = 8  # frames an operation
WAITS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero"}
COPIES = {"_to_copy", "copy_"}
CUDA_ERROR = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS_", "CUDNN_STATUS_", "CUSOLVER_STATUS_",
              "CUSPARSE_STATUS_", "cuFFT error", "device-side assert")


def is_cuda_error(kind, text):
    return kind.endswith("AcceleratorError") or any(t in text for t in CUDA_ERROR)


def name_of(kind):
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def activate(torch):
    from torch.utils._python_dispatch import TorchDispatchMode

    package = os.path.dirname(torch.__file__) + os.sep
    blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    Tensor = torch.Tensor

    def stack():
        """The calling frames outside torch, innermost first."""
        frame, found = sys._getframe(3), []
        while frame is not None and len(found) < DEEP:
            file = frame.f_code.co_filename
            if not file.startswith((package, faultlab.HERE, "<frozen")):
                found.append((file, frame.f_lineno or 0, frame.f_code.co_name))
            frame = frame.f_back
        return tuple(found)

    def tensors(args):
        for arg in args:
            if isinstance(arg, Tensor):
                yield arg
            elif isinstance(arg, (list, tuple)):
                yield from tensors(arg)

    def shape(arg):
        if isinstance(arg, Tensor):
            return f"{str(arg.dtype).removeprefix('torch.')}{list(arg.shape)}"
        return None

    launches = {}  # operation -> may it start a kernel?

    def may_launch(func):
        known = launches.get(func)
        if known is None:
            returns = func._schema.returns
            view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
            known = launches[func] = not (view or "empty" in func._schema.name)
        return known

    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.count = 0
            self.pending = collections.deque(maxlen=KEPT)  # since the last wait, of every stream
            self.recent = collections.deque(maxlen=LAST)
            self.failed = None
            self.ended = None

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            entry = self.begin(func, args)
            try:
                result = func(*args, **kwargs)
            except BaseException as error:
                self.fails(entry, args, error)
                raise
            if entry and entry[3] is not None:
                self.waited(func, entry, args, kwargs, result)
            return result

        def begin(self, func, args):
            try:
                self.count += 1
                stream = None
                if torch.cuda._initialized:
                    stream = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
                entry = (self.count, str(func), stack(), stream)
                self.recent.append(entry)
                if stream is not None and may_launch(func):
                    self.pending.append(entry)
                return entry
            except Exception:  # the log must not disturb the program
                return None

        def waited(self, func, entry, args, kwargs, result):
            """An operation that waited for its stream, and came back: all before it on that stream is done."""
            try:
                name = func._schema.name.rpartition("::")[2]
                waits = name in WAITS and any(t.is_cuda for t in tensors(args))
                if name in COPIES and not kwargs.get("non_blocking") and not (name == "copy_" and args[2:3] == (True,)):
                    waits = len({t.device.type for t in tensors((*args, result))}) > 1
                if waits:
                    self.pending = collections.deque(
                        (e for e in self.pending if e[3] != entry[3]), maxlen=KEPT)
            except Exception:
                pass

        def fails(self, entry, args, error):
            try:
                kind, text = name_of(type(error)), str(error)
                self.failed = (entry, kind, text, [s for s in map(shape, args) if s])
            except Exception:
                pass

    def frames(entry):
        return [{"file": f, "line": n, "function": c} for f, n, c in reversed(entry[2])]

    def finish():
        try:
            write()
        except Exception:
            pass

    def write():
        faultlab.write("active.jsonl", {"pid": os.getpid(), "torch": torch.__version__,
                                        "detail": f"{log.count} operations were logged"})
        if log.ended is None:
            return
        kind, text = log.ended
        first = text.split("\n", 1)[0]
        entry = None
        if log.failed and log.failed[0] and log.failed[1:3] == (kind, text):
            entry, _, _, shapes = log.failed
        cuda = is_cuda_error(kind, text)
        if entry and (blocking or not cuda):
            faultlab.report(f"{entry[1]}({', '.join(shapes)}) raised the error: {first}", python=frames(entry),
                            module=entry[1], error_type=kind)
            return
        if entry:
            faultlab.report(f"{entry[1]} is where the error surfaced", python=frames(entry), module=entry[1], note=True)
        if cuda and not blocking:
            lines = {}  # the newest first
            for e in reversed(log.pending):
                if entry is None or e[0] != entry[0]:
                    lines.setdefault(e[2][:1], []).append(e)
            total = sum(map(len, lines.values()))
            more = f", the newest {LAST} lines follow" if len(lines) > LAST else ""
            faultlab.report(f"{total} operations of {len(lines)} lines were started since the host last waited with "
                            f"success; the fault is in one of them, or in a kernel that is no operation{more}", note=True)
            for entries in list(lines.values())[:LAST]:
                names = list(dict.fromkeys(e[1] for e in entries))
                where = "" if entries[0][2] else " (no Python line: the backward thread)"
                faultlab.report(f"started and not waited for: {', '.join(names[:8])}{where}", python=frames(entries[0]),
                                module=names[0], note=True)
        else:
            for e in reversed(log.recent):
                faultlab.report(f"operation {e[0]} of {log.count}: {e[1]}", python=frames(e), module=e[1], note=True)

    hook = sys.excepthook

    def excepthook(kind, error, traceback):
        try:
            log.ended = (name_of(kind), str(error))
        except Exception:
            pass
        hook(kind, error, traceback)

    log = Log()
    sys.excepthook = excepthook
    atexit.register(finish)
    log.__enter__()
    return "a TorchDispatchMode is on the stack"
