"""Walks from another interpreter in the same process."""

import os
import sys

import hook

SOURCE = f"""
import sys
sys.path[:0] = {sys.path!r}
import hook

def inside():
    return hook.walk()

found = [f["function"].rpartition(".")[2] for f in inside()["frames"]]
# Before 3.12 a thread has its first state registered for the lookup without the GIL: that of the main interpreter.
wanted = ["call", "walk", "inside", "<module>"] if sys.version_info >= (3, 12) else ["run", "<module>"]
assert found[: len(wanted)] == wanted, found
"""


def run():
    try:
        import _interpreters as interpreters

        new = interpreters.create("legacy")
        error = interpreters.exec(new, SOURCE)
        assert error is None, error
    except ImportError:
        import _xxsubinterpreters as interpreters

        new = interpreters.create(isolated=False)
        error = interpreters.run_string(new, SOURCE)
        assert error is None, error
    interpreters.destroy(new)
    return hook.check()


run()
assert hook.walk()["readable"]
print(f"{hook.walk()['description']}: walked from another interpreter")
sys.stdout.flush()
# What is tested is over; the end of interpreters is CPython's own matter.
os._exit(0)
