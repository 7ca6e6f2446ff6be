"""Children of a process whose threads are in the middle of walks."""

import os
import sys
import threading

import hook

stop = False


def busy():
    n = 0
    while not stop:
        n += 1
        exec(compile("\n" * (n % 500) + f"def f_{n}():\n  walk()\nf_{n}()", f"/tmp/{n % 7}.py", "exec"), {"walk": hook.walk})


def child():
    def fresh(n):
        return fresh(n - 1) if n else hook.check()

    fresh(3)
    exec("def g():\n\n check()\ng()", {"check": hook.check})
    thread = threading.Thread(target=fresh, args=(2,))
    thread.start()
    thread.join()
    functions = [f["function"].rpartition(".")[2] for f in hook.call(hook.lib.hook_walk_main)["frames"]]
    assert "child" in functions, functions
    assert hook.checked >= 3


threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()


def fork(from_thread):
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        failed.append((from_thread, status))


failed = []
for _ in range(25):
    fork(False)
    # In such a child this thread is the main one.
    thread = threading.Thread(target=fork, args=(True,))
    thread.start()
    thread.join()
stop = True
for thread in threads:
    thread.join()
assert not failed, failed
print(f"{hook.walk()['description']}: 50 children")
