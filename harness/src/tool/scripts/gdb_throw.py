"""For gdb: what stood on the C++ and the Python stack whenever C++ code threw, into gdb.jsonl in the working folder.

    gdb -batch -nx -x gdb_throw.py --args python program.py     every throw, and how the program ended
    gdb -batch -nx -p PID -x gdb_throw.py                       what a running program is doing now

A library may throw and catch for reasons of its own, so of a program that failed the last throw is of interest.
"""
import gdb
import json
import os
import sys

DEPTH = 40
LIMIT = 500  # throws that are looked at; a program that throws more often runs on unwatched
OUT = os.path.abspath("gdb.jsonl")
STACK = os.path.abspath("gdb.python-stack")


def write(**record):
    with open(OUT, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def quietly(function, *arguments):
    try:
        return function(*arguments)
    except (gdb.error, RuntimeError, OSError, UnicodeError, ValueError):
        return None


def native():
    """Innermost first."""
    found, frame = [], quietly(gdb.newest_frame)
    while frame is not None and len(found) < DEPTH:
        place = quietly(frame.find_sal)
        source = f"{place.symtab.filename}:{place.line}" if place is not None and place.symtab else None
        module = quietly(gdb.solib_name, frame.pc())
        found.append({"symbol": quietly(frame.name) or "??", "module": module, "source": source})
        frame = quietly(frame.older)
    return found


def thrown():
    """The C++ type: the second argument of __cxa_throw is its type_info."""
    for register in ("$rsi", "$x1"):
        said = quietly(lambda: gdb.execute(f"info symbol {register}", to_string=True)) or ""
        if said.startswith("typeinfo for "):
            return said[len("typeinfo for "):].split(" in section ")[0].split(" + ")[0].strip()
    return None


def frames(text):
    """`  File "x.py", line 3 in f` of CPython's own dump, `  File "x.py", line 3, in f` of py-bt."""
    found = []
    for line in text.splitlines():
        line = line.strip()
        if not line.startswith('File "') or '", line ' not in line:
            continue
        file, rest = line[len('File "'):].split('", line ', 1)
        number, _, function = rest.partition(" in ")
        number = number.rstrip(",").strip()
        if number.isdigit():
            found.append({"file": file, "line": int(number), "function": function.strip()})
    return found[::-1]


def python():
    """(Python frames, outermost first; how they were had)."""
    # libpython's own support for gdb reads the interpreter's memory; it comes with a debug package, or beside the
    # interpreter where that was built from source.
    said = quietly(lambda: gdb.execute("py-bt", to_string=True))
    if said and 'File "' in said:
        return frames(said), "py-bt"
    # Else the interpreter is asked, by a call in the program. With some processors' registers gdb 13 cannot do that.
    quietly(os.remove, STACK)
    state = quietly(gdb.parse_and_eval, "(long)PyGILState_GetThisThreadState()")
    if state is not None and int(state) != 0:
        call = f"((int (*)(const char *, int, int)) open)(\"{STACK}\", 577, 384)"
        descriptor = quietly(gdb.parse_and_eval, call)
        if descriptor is not None and int(descriptor) >= 0:
            number = int(descriptor)
            quietly(lambda: gdb.execute(f"call (void)_Py_DumpTraceback({number}, (void*){int(state)})", to_string=True))
            quietly(gdb.parse_and_eval, f"((int (*)(int)) close)({number})")
            text = quietly(lambda: open(STACK, encoding="utf-8", errors="replace").read()) or ""
            quietly(os.remove, STACK)
            if text:
                return frames(text), "_Py_DumpTraceback"
    return [], None


def snapshot(kind, **more):
    thread = gdb.selected_thread()
    # The Python part first: it may call into the program, which must not change what the C++ part sees.
    found, how = python()
    write(kind=kind, thread=thread.num if thread else None, native=native(), python=found, python_by=how, **more)


def support():
    """Loads what helps gdb to understand CPython, if it lies beside the interpreter."""
    file = gdb.current_progspace().filename
    helper = os.path.realpath(file) + "-gdb.py" if file else ""
    if os.path.exists(helper) and "py-bt" not in (quietly(lambda: gdb.execute("help py-bt", to_string=True)) or ""):
        quietly(lambda: gdb.execute(f"source {helper}", to_string=True))


def settings():
    for line in (
        "set pagination off", "set confirm off", "set width 0", "set print thread-events off",
        "set breakpoint pending on", "set unwindonsignal on", "set scheduler-locking off",
        "handle SIGPIPE SIGUSR1 SIGUSR2 SIGALRM nostop noprint pass",
    ):
        quietly(lambda: gdb.execute(line, to_string=True))


def run():
    ended = {}

    def exited(event):
        ended["code"] = getattr(event, "exit_code", None)

    stopped = {}

    def stop(event):
        stopped["signal"] = getattr(event, "stop_signal", None)

    gdb.events.exited.connect(exited)
    gdb.events.stop.connect(stop)
    gdb.execute("break __cxa_throw", to_string=True)
    support()
    write(kind="started", gdb=gdb.VERSION, py_bt=bool(quietly(lambda: gdb.execute("help py-bt", to_string=True))))
    count, action = 0, "run"
    while True:
        stopped.clear()
        gdb.execute(action)
        if not gdb.selected_inferior().pid or ended:
            break
        action = "continue"
        if stopped.get("signal"):
            snapshot("signal", signal=stopped["signal"], count=count)
            quietly(lambda: gdb.execute("kill", to_string=True))
            break
        count += 1
        if count <= LIMIT:
            if count == 1:
                support()
            # At the breakpoint the arguments are still in their registers.
            snapshot("throw", exception=thrown(), count=count)
        else:
            gdb.execute("delete", to_string=True)
    write(kind="ended", code=ended.get("code"), throws=count)
    code = ended.get("code")
    gdb.execute(f"quit {1 if code is None else int(code)}")


settings()
if gdb.selected_inferior().pid:
    support()
    snapshot("attached")
    gdb.execute("detach")
else:
    run()
