"""The readers of line tables against `co_lines()`, for every instruction of the standard library."""

import ctypes
import importlib.machinery
import os
import sys
import sysconfig
import types
import warnings

import hook

warnings.simplefilter("ignore")
sys.dont_write_bytecode = True
WORD = 2
hook.lib.hook_lines.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def compare(code):
    count = len(code.co_code) // WORD
    # The table reaches exactly as far as the code: where it did not, the hook would say -2.
    wanted = [-1] * count
    for start, end, line in code.co_lines():
        for at in range(max(start, 0) // WORD, end // WORD):
            wanted[at] = -1 if line is None else line
    found = (ctypes.c_int * count)()
    pairs = sys.version_info < (3, 11)
    hook.lib.hook_lines(pairs, code.co_linetable, len(code.co_linetable), code.co_firstlineno, found, count)
    assert list(found) == wanted, (code, code.co_linetable, list(found), wanted)
    return count


seen = instructions = 0
for folder, folders, files in os.walk(sysconfig.get_path("stdlib")):
    folders[:] = [f for f in folders if f not in ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__")]
    for file in files:
        path = os.path.join(folder, file)
        if not file.endswith(".py"):
            continue
        try:
            code = importlib.machinery.SourceFileLoader("m", path).get_code("m")
        except (SyntaxError, ImportError, OSError, ValueError):
            continue
        for one in codes(code):
            seen += 1
            instructions += compare(one)
assert seen > 5000 and instructions > 300_000, (seen, instructions)
print(f"{sys.version.split()[0]}: {seen} code objects, {instructions} instructions")
