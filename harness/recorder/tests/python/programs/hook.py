"""The walker, and what it must give: the interpreter's own frames under the walker's policy."""

import ctypes
import json
import os
import re
import sys
import sysconfig

lib = ctypes.CDLL(os.environ["FAULTLAB_TEST_HOOK"])
lib.hook_time.restype = ctypes.c_double
lib.hook_watched.restype = ctypes.c_uint64
lib.hook_bytes.restype = lib.hook_size.restype = ctypes.c_size_t

FRAMES = 20
INNERMOST = 4
STDLIB = sysconfig.get_path("stdlib") + "/"


def call(function, *args):
    buffer = ctypes.create_string_buffer(1 << 17)
    assert function(*args, buffer, ctypes.c_size_t(len(buffer))) == 0
    return json.loads(buffer.value)


def walk():
    """The calling thread's frames; the first is this one."""
    return call(lib.hook_walk)


def own(file):
    if file.startswith("<"):
        return file.startswith(("<string>", "<stdin"))
    return not file.startswith(STDLIB) and "/site-packages/" not in file


def name(code):
    return code.co_qualname if hasattr(code, "co_qualname") else code.co_name


def expected(frame, before=0):
    """What a walk gives from this frame on, after so many own frames, and whether there is more."""
    kept = [None] * before
    depth = before
    while frame is not None and len(kept) < FRAMES and depth < 1024:
        code = frame.f_code
        file = re.sub("[\ud800-\udfff]", "\ufffd", code.co_filename)
        if own(file) or len(kept) < INNERMOST:
            kept.append({"file": file, "line": frame.f_lineno or 0, "function": name(code), "user": own(file)})
        frame = frame.f_back
        depth += 1
    return kept[before:], frame is not None


checked = 0


def check(*ignored, **also):
    """Compares a walk from here with the interpreter's frames. It is called in all the ways that a line can call."""
    global checked
    checked += 1
    report = walk()
    assert report["readable"], report
    # Two frames of this file come first: `call` and `walk`.
    found = report["frames"][2:]
    wanted, more = expected(sys._getframe(), 2)
    # Its own line is another by now.
    assert found[0]["function"] == "check", found
    found, wanted = found[1:], wanted[1:]
    if found != wanted or report["truncated"] != more:
        lines = [f"walked {f}\nwanted {w}" for f, w in zip(found, wanted) if f != w]
        raise AssertionError(f"{len(found)} {len(wanted)} {report['truncated']} {more}\n" + "\n".join(lines))
    return 1


def main(program):
    """Runs all functions of a program whose names begin with `test_`; prints how many checks were made."""
    for key, value in list(program.items()):
        if key.startswith("test_"):
            before = checked
            try:
                value()
            except BaseException:
                print(f"in {key}, {sys.version}, {walk()['description']}:", file=sys.stderr)
                raise
            assert checked > before, f"{key} checked nothing"
    print(f"{walk()['description']}: {checked} checks")
