"""Starts programs quickly: imports torch once, and forks for each order on standard input.

An order is a line of JSON: {"id", "argv", "env", "folder"}. The child is an interpreter of its own from then on: it sets its
environment before CUDA is initialised, writes stdout and stderr in its folder, runs the program as `__main__`, and ends as an
interpreter ends. Standard output says {"id", "pid"} and later {"id", "status"}, negative for a signal, as subprocess does.
"""
import json
import os
import runpy
import selectors
import sys


def become(order):
    """In the child: what exec would have set up."""
    os.setsid()
    os.chdir(order["folder"])
    for fd, name, flags in ((0, os.devnull, os.O_RDONLY), (1, "stdout", None), (2, "stderr", None)):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if flags is None else flags, 0o644)
        os.dup2(opened, fd)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, buffering=1) for fd, mode in ((0, "r"), (1, "w"), (2, "w")))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    for key, value in order["env"].items():
        os.environ.pop(key, None) if value is None else os.environ.__setitem__(key, value)
    sys.argv = order["argv"]
    sys.path[0] = os.path.dirname(order["argv"][0])


def serve():
    """Returns the order in a child, None at the end of the orders in the parent."""
    running = {}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    import signal

    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(reader, selectors.EVENT_READ)
    pending, open_ended = b"", True
    while open_ended or running:
        for key, _ in selector.select():
            if key.fd == reader:
                os.read(reader, 4096)
                continue
            more = os.read(0, 65536)
            if not more:
                open_ended = False
                selector.unregister(0)
                continue
            *lines, pending = (pending + more).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for fd in (reader, writer):
                        os.close(fd)
                    selector.close()
                    return order
                running[pid] = order["id"]
                say(id=order["id"], pid=pid)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                say(id=running.pop(pid), status=os.waitstatus_to_exitcode(status))
    return None


def say(**words):
    os.write(1, json.dumps(words).encode() + b"\n")


import torch  # noqa: E402  the point of it all

assert not torch.cuda.is_initialized(), "CUDA is initialised before the fork"
order = serve()
if order is not None:
    become(order)
    runpy.run_path(order["argv"][0], run_name="__main__")
