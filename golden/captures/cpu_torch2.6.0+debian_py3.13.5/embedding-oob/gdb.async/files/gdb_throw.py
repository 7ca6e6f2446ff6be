"""For gdb: what stood on the C++ and the Python stack whenever C++ code threw, into gdb.jsonl in the working folder.

    gdb -batch -nx -x gdb_throw.py --args python program.py     every throw, and how the program ended
    gdb -batch -nx -p PID -x gdb_throw.py                       what each thread of a running program is doing now

A library may throw and catch for reasons of its own, so of a program that failed the last throw is of interest.
"""
import gdb
import json
import os
import sys

DEPTH = 40
LIMIT = 500  # throws that are looked at; a program that throws more often runs on unwatched
VARIABLES = 24  # of a frame
VALUE = 160  # characters of a value
# Functions that only carry out a throw. The frame that called the first of them is the one that raised.
CARRIERS = ("__cxa_throw", "c10::detail::", "c10::Error", "c10::ThrowOn", "std::__throw_", "torch::PyTypeError")
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


def module(frame):
    """The file that the frame's code is from."""
    return quietly(lambda: gdb.solib_name(frame.pc()))


def tensor(value):
    """at::Tensor([64, 800]): what gdb would print is a pointer. Needs c10's types."""
    implementation = value["impl_"]["target_"].dereference()
    sizes = implementation["sizes_and_strides_"]
    count = int(sizes["size_"])
    if not 0 <= count <= 64:
        raise ValueError("not a tensor yet")
    # Up to five dimensions lie in the object itself, as sizes and then strides.
    at = sizes["inlineStorage_"] if count <= 5 else sizes["outOfLineStorage_"]
    return f"Tensor{[int(at[i]) for i in range(count)]}"


def shown(value):
    """A value on one short line."""
    plain = value.type.strip_typedefs()
    if plain.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
        value = value.referenced_value()
        plain = value.type.strip_typedefs()
    if plain.unqualified().name in ("at::Tensor", "at::TensorBase"):
        said = quietly(tensor, value)
        if said:
            return said
    text = value.format_string(max_elements=8, max_depth=2, raw=False, symbols=False)
    text = " ".join(text.split())
    return text if len(text) <= VALUE else text[:VALUE] + "…"


def variables(frame, line):
    """The arguments and the variables that are declared above the line: the others are not set yet."""
    found, names = [], set()
    block = quietly(frame.block)
    while block is not None:
        for symbol in block:
            # `__range1` and the like are the compiler's own.
            ours = (symbol.is_argument or symbol.is_variable) and not symbol.name.startswith("__")
            ours = ours and symbol.name not in names
            if not ours or len(found) >= VARIABLES or not (symbol.is_argument or symbol.line < line):
                continue
            names.add(symbol.name)
            value = quietly(lambda: shown(symbol.value(frame)))
            if value is not None:
                found.append({"name": symbol.name, "type": str(symbol.type), "value": value})
        if block.function is not None:
            break
        block = block.superblock
    return found


def source_line(place):
    """The text of the line, where the source is there."""
    at = f"{place.symtab.filename}:{place.line}"
    text = quietly(lambda: gdb.execute(f"list {at},{at}", to_string=True)) or ""
    number, _, text = text.strip().partition("\t")
    return text.strip() if number == str(place.line) and text else None


def raised():
    """The frame that raised: its function, line, the line's text and its variables, as far as gdb is told of them."""
    frame, carried = quietly(gdb.newest_frame), False
    while frame is not None:
        name = quietly(frame.name) or ""
        if not name.startswith(CARRIERS):
            break
        carried, frame = True, quietly(frame.older)
    if frame is None or not carried:
        return None
    place = quietly(frame.find_sal)
    known = place is not None and place.symtab is not None and place.line > 0
    found = {"symbol": quietly(frame.name) or "??", "source": None, "text": None, "variables": []}
    if known:
        selected = quietly(gdb.selected_frame)
        quietly(frame.select)
        found["source"] = f"{place.symtab.filename}:{place.line}"
        found["text"] = source_line(place)
        found["variables"] = quietly(variables, frame, place.line) or []
        if selected is not None:
            quietly(selected.select)
    return found


def native():
    """Innermost first."""
    found, frame = [], quietly(gdb.newest_frame)
    while frame is not None and len(found) < DEPTH:
        place = quietly(frame.find_sal)
        source = f"{place.symtab.filename}:{place.line}" if place is not None and place.symtab else None
        found.append({"symbol": quietly(frame.name) or "??", "module": module(frame), "source": source})
        frame = quietly(frame.older)
    return found


def thrown():
    """The C++ type: the second argument of __cxa_throw is its type_info."""
    for register in ("$rsi", "$x1"):
        said = quietly(lambda: gdb.execute(f"info symbol {register}", to_string=True)) or ""
        if said.startswith("typeinfo for "):
            name = said[len("typeinfo for "):].split(" in section ")[0].split(" + ")[0].strip()
            return name.split("@")[0]  # without the version of a library's symbol
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
            exception = thrown()
            snapshot("throw", exception=exception, raised=quietly(raised), count=count)
        else:
            gdb.execute("delete", to_string=True)
    write(kind="ended", code=ended.get("code"), throws=count)
    code = ended.get("code")
    gdb.execute(f"quit {1 if code is None else int(code)}")


def attached():
    """Each thread; the main one last, because a reader takes the last word for the answer."""
    write(kind="started", gdb=gdb.VERSION, py_bt=bool(quietly(lambda: gdb.execute("help py-bt", to_string=True))))
    threads = sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num, reverse=True)
    for thread in threads[-LIMIT:]:
        if quietly(lambda: thread.switch() or True):
            snapshot("attached", name=thread.name)
    write(kind="ended", code=None, throws=0)
    gdb.execute("detach")


settings()
if gdb.selected_inferior().pid:
    support()
    attached()
else:
    run()
