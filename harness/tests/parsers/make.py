"""Makes the fixtures of parsers.rs by running real CPython interpreters.

    python3 make.py python3.11 py311
    python3 make.py python3.13 py313

Each program below is written to its own file in a scratch folder, run by the interpreter named, and what it
printed on stderr is kept as <name>.<tag>.txt. Host paths and addresses are replaced, so that a fixture made
anywhere reads the same.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAMS = {
    "plain": """
def inner(x):
    return x["key"] + 1

def outer():
    return inner({})

outer()
""",
    "marks": """
def area(w, h):
    return (w + 1) * (h / 0) + w

print("héé", area(2, 3))
""",
    "multiline_source": """
def f(a, b, c, d):
    return a + b + c + d

f(
    1,
    2,
    None,
    4,
)
""",
    "long_call": """
def f(*a):
    raise ValueError("x")

f(
    1,
    2,
    3,
    4,
    5,
    6,
    7,
)
""",
    "chained": """
class Bad(Exception):
    pass

def parse(s):
    try:
        return int(s)
    except ValueError as e:
        raise Bad(f"not a number: {s!r}") from e

def load(s):
    try:
        return parse(s)
    except Bad:
        return {}[s]

load("x")
""",
    "cause_without_traceback": """
raise RuntimeError("outer") from ValueError("never raised")
""",
    "notes": """
e = ValueError("first line\\nsecond line\\n\\nafter a blank")
e.add_note("note one")
e.add_note("note two\\n  indented")
raise e
""",
    "empty_message": """
class Quiet(Exception):
    pass

def f():
    raise Quiet

f()
""",
    "local_type": """
def f():
    class Inner(Exception):
        pass
    raise Inner("from a local class: with a colon")

f()
""",
    "recursion": """
import sys
sys.setrecursionlimit(200)

def down(n):
    return down(n + 1)

down(0)
""",
    "groups": """
def one():
    raise ValueError("one")

def two():
    try:
        one()
    except ValueError as e:
        raise TypeError("two\\nlines") from e

def collect(*fs):
    es = []
    for f in fs:
        try:
            f()
        except Exception as e:
            es.append(e)
    raise ExceptionGroup("several", es)

def nested():
    collect(one, two)

try:
    collect(one, nested, two)
except ExceptionGroup as e:
    raise RuntimeError("after the group") from e
""",
    "group_last": """
raise ExceptionGroup("never raised members", [ValueError(1), ExceptionGroup("inner", [KeyError("k")]), OSError(2, "no")])
""",
    "group_wide": """
raise ExceptionGroup("wide", [ValueError(i) for i in range(20)])
""",
    "syntax_error_import": """
import tempfile, os, sys
d = tempfile.mkdtemp()
open(os.path.join(d, "broken_mod.py"), "w").write("x = 1\\ny = = 2\\n")
sys.path.insert(0, d)
import broken_mod
""",
    "syntax_error_main": """
x = 1
y = = 2
""",
    "keyboard_interrupt": """
def wait():
    raise KeyboardInterrupt

wait()
""",
    "ignored": """
class C:
    def __del__(self):
        raise ValueError("in del")

def f():
    c = C()

f()
import sys
print("going on", file=sys.stderr)
""",
    "thread": """
import threading
def work():
    raise ValueError("in a thread")
t = threading.Thread(target=work, name="loader")
t.start()
t.join()
""",
    "stack_info": """
import logging
logging.basicConfig()
def f():
    logging.error("where am I", stack_info=True)
f()
""",
    "print_exc_then_output": """
import sys, traceback
for i in range(2):
    try:
        [][i]
    except IndexError:
        traceback.print_exc()
    print(f"2024-05-01 10:00:0{i} INFO step done", file=sys.stderr)
""",
    "multiprocessing": """
import multiprocessing as mp

def work(n):
    raise ValueError(f"worker {n}")

if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    p = ctx.Process(target=work, args=(3,))
    p.start()
    p.join()
""",
    "pool": """
from concurrent.futures import ProcessPoolExecutor

def work(n):
    return 1 // n

if __name__ == "__main__":
    with ProcessPoolExecutor(1) as pool:
        print(pool.submit(work, 0).result())
""",
    "dataloader_worker": """
import sys, traceback

class ExceptionWrapper:
    # The shape of torch/_utils.py::ExceptionWrapper, which a DataLoader worker sends to its parent.
    def __init__(self):
        self.type = sys.exc_info()[0]
        self.text = "".join(traceback.format_exception(*sys.exc_info()))

    def reraise(self):
        raise self.type(f"Caught {self.type.__name__} in DataLoader worker process 0.\\nOriginal {self.text}")

def getitem(i):
    return [1][i]

def worker():
    try:
        getitem(7)
    except IndexError:
        return ExceptionWrapper()

def next_batch():
    worker().reraise()

next_batch()
""",
    "faulthandler": """
import faulthandler, os, threading, time
faulthandler.enable()
def idle():
    time.sleep(60)
threading.Thread(target=idle, daemon=True).start()
time.sleep(0.2)
def crash():
    os.abort()
def run():
    crash()
run()
""",
    "faulthandler_names": """
import faulthandler, os
faulthandler.enable()
def größe(n):
    os.abort()
def 大きさ():
    größe(1)
大きさ()
""",
    "no_trailing_newline": """
import sys
sys.stderr.write("Epoch 1:  10%|#         | 1/10 [00:00<00:01, 9.1it/s]")
sys.stderr.flush()
raise ValueError("after a progress bar")
""",
    "interleaved": """
# Two processes share one stderr and take turns for every line: the worst case of a merged log.
import io, subprocess, sys, traceback

def one():
    raise ValueError("rank zero")

def two():
    one()

def three():
    {}["rank one"]

def text(f):
    try:
        f()
    except Exception:
        return traceback.format_exc().splitlines()

a, b = text(two), text(three)
for i in range(max(len(a), len(b))):
    for lines in (a, b):
        if i < len(lines):
            print(lines[i], file=sys.stderr)
""",
    "interleaved_same": """
import sys, traceback

def one():
    raise ValueError("same everywhere")

def two():
    one()

def text():
    try:
        two()
    except Exception:
        return traceback.format_exc().splitlines()

a = text()
for line in a:
    print(line, file=sys.stderr)
    print(line, file=sys.stderr)
""",
    "prefixed": """
import sys, traceback

def one(n):
    raise ValueError(f"rank {n}\\nsecond line of {n}")

def two(n):
    one(n)

def text(n):
    try:
        two(n)
    except Exception:
        return traceback.format_exc().splitlines()

a, b = text(0), text(1)
for x, y in zip(a, b):
    print("[rank0]: " + x, file=sys.stderr)
    print("[rank1]: " + y, file=sys.stderr)
    print("ordinary output of somebody", file=sys.stderr)
""",
}


def main() -> None:
    interpreter, tag = sys.argv[1:]
    here = pathlib.Path(__file__).parent
    for name, program in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch, "main.py")
            path.write_text(program.lstrip("\n"))
            env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
            if name in ("plain", "chained") and tag != "py311":
                env["FORCE_COLOR"] = "1"
            done = subprocess.run([interpreter, str(path)], stderr=subprocess.PIPE, env=env, timeout=60)
            text = done.stderr.decode()
            text = text.replace(scratch, "/job")
            text = re.sub(r"/tmp/tmp\w+", "/tmp/mod", text)
            text = re.sub(r'"(?:/[^"/\n]+)+/lib/python3', '"/usr/lib/python3', text)
            text = re.sub(r"0x[0-9a-f]{8,16}", "0x00007f0000001000", text)
            (here / f"{name}.{tag}.txt").write_text(text)


main()
