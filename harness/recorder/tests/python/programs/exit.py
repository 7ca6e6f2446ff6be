"""Walks while the interpreter goes: from exit functions, finalisers, other threads, and when it is gone."""

import atexit
import sys
import threading

import hook


class Last:
    def __del__(self, walk=hook.call, function=hook.lib.hook_walk):
        walk(function)


def at_exit():
    hook.check()
    print(hook.walk()["description"], flush=True)


def forever():
    def deep(n):
        while n == 0:
            hook.lib.hook_time(2)
        deep(n - 1)

    deep(15)


hook.lib.hook_at_exit()
atexit.register(at_exit)
sys.last = Last()
cycle = Last()
cycle.cycle = cycle
# They are stopped where they ask for the GIL; until then they walk.
for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
hook.lib.hook_watch(2)
