"""Nanoseconds of a walk at some depths: with frames of the program's own, and of a library, which are all looked at."""


import hook

SOURCE = """
def HERE(n):
    return NEXT(n - 1) if n > 0 else time(2000)
"""
COUNT = 40


def functions(file):
    """As many different functions, each of which calls the next."""
    namespace = {"time": hook.lib.hook_time}
    for n in range(COUNT):
        source = SOURCE.replace("HERE", f"down_{n}").replace("NEXT", f"down_{(n + 1) % COUNT}")
        exec(compile("\n" * n + source, file, "exec"), namespace)
    return namespace["down_0"]


# The least of some rounds: other processes only add to it.
own, library = functions("/home/me/model.py"), functions(f"{hook.STDLIB}library.py")
report = [hook.walk()["description"].partition(",")[0]]
for depth in (10, 40, 100):
    report.append(f"depth {depth:3}: {own(depth - 2):4.0f} ns own, {library(depth - 2):4.0f} ns library")
print("; ".join(report))
