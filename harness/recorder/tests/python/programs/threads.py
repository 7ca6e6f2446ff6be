"""Many threads walk while others make code objects and drop them; the main thread is watched from native threads."""

import gc
import random
import sys
import threading
import time
import traceback

import hook

SECONDS = float(sys.argv[1])
errors = []
counts = []


def until(end):
    while time.monotonic() < end and not errors:
        yield


def walker(seed, end):
    rng = random.Random(seed)
    count = 0
    for _ in until(end):
        # The lines say which code this is: a line of another one, or of an earlier one at the same address, is seen.
        before, inside = rng.randrange(300), rng.randrange(60)
        name = f"f_{rng.randrange(1000)}"
        source = "\n" * before + f"def {name}(n):\n" + "\n" * inside + f" return {name}(n - 1) if n else walk()\nout = {name}(3)\n"
        file = rng.choice(["<string>", f"/tmp/a_{rng.randrange(50)}.py", f"/tmp/ж_{rng.randrange(50)}.py"])
        namespace = {"walk": hook.walk}
        exec(compile(source, file, "exec"), namespace)
        found = [(f["file"], f["line"], f["function"]) for f in namespace["out"]["frames"][2:7]]
        line = before + inside + 2
        wanted = [(file, line, name)] * 4 + [(file, line + 1, "<module>")]
        if found != wanted:
            errors.append(f"found {found}\nwanted {wanted}")
        count += 1
    counts.append(count)


def maker(seed, end):
    rng = random.Random(seed)
    for _ in until(end):
        source = "\n".join(f"def g_{n}(x):\n" + "\n" * rng.randrange(9) + " return [x for _ in range(2)]" for n in range(20))
        exec(compile(source, rng.choice(["<string>", "/tmp/made.py"]), "exec"), {})
        if rng.random() < 0.02:
            gc.collect()


def guarded(function, *args):
    try:
        function(*args)
    except BaseException:
        errors.append(traceback.format_exc())


sys.setswitchinterval(1e-5)
hook.lib.hook_watch(2)
end = time.monotonic() + SECONDS
threads = [threading.Thread(target=guarded, args=(walker, n, end)) for n in range(6)]
threads += [threading.Thread(target=guarded, args=(maker, n, end)) for n in range(2)]
for thread in threads:
    thread.start()
# The watched thread makes and drops code as well.
guarded(maker, 99, end)
for thread in threads:
    thread.join()
assert not errors, errors[0]
assert hook.walk()["readable"], hook.walk()["description"]
assert hook.lib.hook_watched() > 0
print(f"{hook.walk()['description']}: {sum(counts)} walks, {hook.lib.hook_watched()} of the main thread, {hook.lib.hook_bytes()} bytes")
