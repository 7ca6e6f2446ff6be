"""What a process is doing that hangs: the stacks of all its threads, on a signal that is sent before it is killed.

faulthandler writes them from the signal's handler: it needs no GIL, so it answers also where C code holds that and waits, and
it starts no thread, so a fork loses nothing. Each process has a file of its own, stacks.<pid>.txt; an empty one goes with
its process.
"""
import atexit
import faulthandler
import fcntl
import os

# Programs that close all files at their start, and then open their own, mostly get smaller numbers.
HIGH = 500

_open = None


def install(signum):
    """Answers this signal, here and in children that are forked."""
    _start(signum)
    os.register_at_fork(after_in_child=lambda: _start(signum))
    atexit.register(_finish)


def _start(signum):
    global _open
    path = os.path.join(os.environ["FAULTLAB_RECORDER_DIR"], f"stacks.{os.getpid()}.txt")
    try:
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            number, low = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, HIGH), number
            os.close(low)
        except OSError:  # a small limit of open files: this number will do
            pass
        if _open:
            os.close(_open[0])  # the parent's
        _open = number, path, os.getpid()
        faulthandler.register(signum, file=number, all_threads=True)
    except (OSError, RuntimeError, ValueError):  # no such folder, no such signal: nobody will be asked
        pass


def _finish():
    try:
        _number, path, process = _open
        if process == os.getpid() and not os.path.getsize(path):
            os.unlink(path)
    except (OSError, TypeError):
        pass
