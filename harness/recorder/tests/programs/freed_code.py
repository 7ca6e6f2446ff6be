"""The code that launched is gone by the time the error surfaces, and its memory is used for other code."""

import gc

import fakecuda as cuda

OTHER = "def launch(cuda):\n    pass\n\n\n" + "def other():\n    return 1\n" * 3


def launcher():
    def launch():
        cuda.launch("fault_assert", microseconds=150_000)  # FAULT

    return launch


cuda.launch("scale")
launcher()()
exec(compile("\n\n\n\n\ncuda.launch('scale', microseconds=10)\n", "generated.py", "exec"))
del launcher
gc.collect()
kept = []
for number in range(2000):
    space = {}
    exec(compile(OTHER.replace("other", f"other_{number}"), f"other_{number}.py", "exec"), space)
    kept.append(space)
cuda.synchronize()  # SURFACE
