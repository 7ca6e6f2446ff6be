"""What the recorder's Python modules share: import hooks, user frames, and bounded files of JSON lines."""
import importlib.abc
import importlib.util
import json
import os
import sys
import sysconfig

HERE = os.path.dirname(os.path.abspath(__file__))
FILE_LIMIT = 16 << 20  # bytes of a file, at most


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once a module has been imported: `AfterImport({"torch": callback})`. Each callback gets the module.

    What a callback raises is dropped: the import, and so the program, must not fail because of it.
    """

    def __init__(self, callbacks):
        self.callbacks = dict(callbacks)

    def install(self):
        for name in [n for n in self.callbacks if n in sys.modules]:
            self._call(self.callbacks.pop(name), sys.modules[name])
        if self.callbacks:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        callback = self.callbacks.pop(name, None)
        if callback is None:
            return None
        if not self.callbacks and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)  # asks the other finders: the name is no longer ours
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader, run = spec.loader, spec.loader.exec_module

        def exec_module(module):
            try:
                del loader.exec_module  # the class's own again
            except AttributeError:
                pass
            run(module)
            self._call(callback, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots: without the callback, then
            pass
        return spec

    @staticmethod
    def _call(callback, module):
        try:
            callback(module)
        except Exception as error:
            notice(f"{module.__name__} could not be prepared: {error!r}")


_said = set()


def notice(message):
    """One line on stderr, once for each message and at most a few."""
    if message in _said or len(_said) >= 8:
        return
    _said.add(message)
    try:
        sys.stderr.write(f"faultlab: {message}\n")
        sys.stderr.flush()
    except Exception:
        pass


_sizes = {}


def append(stem, record):
    """Appends one JSON line to `<stem>.<pid>.jsonl` in the recorder's folder. Returns whether it was written.

    One write call a line, so that threads do not mix theirs. A file stops growing at FILE_LIMIT.
    """
    try:
        path = os.path.join(os.environ["FAULTLAB_RECORDER_DIR"], f"{stem}.{os.getpid()}.jsonl")
        line = (json.dumps(record, default=str) + "\n").encode("utf-8", "backslashreplace")
        size = _sizes.get(path, 0) + len(line)
        if size > FILE_LIMIT:
            return False
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
        _sizes[path] = size
        return True
    except (KeyError, OSError, TypeError, ValueError):  # no folder, disk full: the program goes on
        return False


def _folders():
    paths = sysconfig.get_paths()
    return tuple({os.path.join(paths[k], "") for k in ("stdlib", "platstdlib") if k in paths})


_STDLIB = _folders()
_user = {}


def is_user(file):
    """Whether a file is the user's own: not the standard library, not an installed package, not generated."""
    known = _user.get(file)
    if known is None:
        installed = any(f"{os.sep}{p}{os.sep}" in file for p in ("site-packages", "dist-packages"))
        generated = file.startswith("<") or f"{os.sep}torchinductor_" in file
        known = not (installed or generated or file.startswith(_STDLIB) or file.startswith(HERE + os.sep))
        if len(_user) < 65536:
            _user[file] = known
    return known
