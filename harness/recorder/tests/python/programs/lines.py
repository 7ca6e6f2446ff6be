"""A walk from every kind of place, against the interpreter's own line numbers."""

import ast
import asyncio
import contextlib
import functools
import gc
import importlib
import os
import signal
import sys
import tempfile
import textwrap
import threading
import traceback
import weakref

import hook
from hook import check


def test_function():
    check()
    x = 1; check(); x += 1  # fmt: skip
    return check(
        1,
        2,
    )


def test_calls_over_lines():
    check(
        1,
        check(),
        *[
            check(),
        ],
        a=(
            1,
            check(
                2
            ),
        ),
    )
    (
        [1, 2]
        .__class__
        .__call__(range(check()))
        .append(
            check()
        )
    )
    value = (
        check()
        + 1
        + check()
        * 2
    )
    text = f"""{
        check()
    } and {
        check()}
    """
    assert value and text and check() if (
        check()
    ) else (
        check()
    )


def test_recursion():
    def down(n):
        if n == 0:
            return check()
        return down(
            n - 1
        )

    for depth in (1, 3, 14, 15, 16, 17, 18, 40, 200):
        down(depth)


def test_deep_library():
    # Frames of the standard library in between do not push those of the program out.
    def nest(n):
        if n == 0:
            return check()
        with contextlib.ExitStack() as stack:
            stack.callback(nest, n - 1)
        return contextlib.ContextDecorator()(nest_again)(n)

    def nest_again(n):
        return check()

    class Recreating(contextlib.ContextDecorator):
        def __enter__(self):
            return self

        def __exit__(self, *exc):
            return False

    @Recreating()
    def decorated(n):
        return decorated(n - 1) if n else check()

    decorated(8)
    decorated(30)


def test_statements():
    try:
        check()
        raise ValueError(check())
    except ValueError as error:
        check(
            error
        )
    else:
        raise AssertionError
    finally:
        check()
    for _ in range(check()):
        check()
    else:
        check()
    n = 0
    while n < check():
        n += 1
    if not check():
        pass
    elif check():
        check()
    del n
    x = {check(): check(),
         2: check()}
    x[
        check()
    ] = check()
    (y := check())
    a, b = (check(),
            check())
    assert check(), check()
    try:
        assert not check(), (
            check()
        )
    except AssertionError:
        check()
    return x, y, a, b


def test_with():
    class Context:
        def __init__(self, value):
            check()

        def __enter__(self):
            check()
            return self

        def __exit__(self, *exc):
            check()
            return True

    with Context(check()), \
            Context(
                check()
            ) as c:
        check(c)
        raise ValueError
    with (
        Context(1),
        Context(2)
    ):
        check()

    @contextlib.contextmanager
    def manager():
        check()
        try:
            yield check()
        finally:
            check()

    with manager():
        check()
    with contextlib.suppress(KeyError), manager():
        raise KeyError(check())


def test_decorators():
    def make(*args):
        check()

        def decorator(function):
            check()

            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                check()
                return function(
                    *args, **kwargs
                )

            return wrapper

        return decorator

    @make(
        check(),
        1,
    )
    @make(check())
    @functools.lru_cache(maxsize=check())
    def decorated(
        a=check(),
        *,
        b: check() = check(),
    ):
        check()
        return a + b

    decorated()
    decorated(2, b=3)


def test_comprehensions():
    [check() for _ in range(3)]
    [
        check()
        for a in range(check())
        for b in [
            check()
        ]
        if check()
    ]
    {check() for _ in range(2)}
    {
        check():
        check()
        for _ in range(2)
    }
    list(
        check()
        for _ in range(3)
    )
    [[check() for _ in range(2)] for _ in range(2)]
    list(map(lambda x: check(
        x
    ), range(3)))
    any(not check() for _ in range(2))


def test_lambdas():
    f = lambda: check()  # noqa: E731
    f()
    g = lambda x: (  # noqa: E731
        check(),
        f(),
        x and g(x - 1),
    )
    g(3)


def test_generators():
    def inner():
        check()
        got = yield check()
        check(got)
        try:
            yield 2
        except ValueError:
            check()
            yield check()
        finally:
            check()

    def outer():
        check()
        value = yield from inner()
        check()
        return value

    g = outer()
    next(g)
    g.send(5)
    g.throw(ValueError())
    list(g)
    g = outer()
    next(g)
    g.close()

    def deep(n):
        if n:
            yield from deep(n - 1)
        yield check()

    for _ in deep(5):
        check()


def test_coroutines():
    class Manager:
        async def __aenter__(self):
            check()
            await asyncio.sleep(0)
            check()

        async def __aexit__(self, *exc):
            check()
            await asyncio.sleep(0)
            check()

    async def numbers(n):
        for i in range(n):
            check()
            yield i
            await asyncio.sleep(0)
            check()

    async def leaf():
        check()
        await asyncio.sleep(0)
        return check(
            1
        )

    async def branch():
        check(await leaf())
        async with Manager():
            check()
        async for _ in numbers(2):
            check()
        [check() async for _ in numbers(2)]
        await asyncio.gather(
            leaf(),
            leaf(),
        )
        return await leaf(
        )

    async def main():
        await asyncio.wait_for(branch(), 60)
        check()

    asyncio.run(main())


def test_classes():
    class Meta(type):
        def __new__(cls, *args, **kwargs):
            check()
            return super().__new__(cls, *args, **kwargs)

    class Thing(metaclass=Meta):
        check()
        attribute = check(
            1
        )

        def __init_subclass__(cls):
            check()

        def __init__(self):
            check()

        @property
        def value(self):
            return check()

        def __getattr__(self, name):
            return check()

        def __add__(self, other):
            return check()

        def __getitem__(self, key):
            return check()

        def __call__(self):
            return check()

        def __len__(self):
            return check()

        def __eq__(self, other):
            return check()

        def __hash__(self):
            return check()

        def __iter__(self):
            check()
            return iter([check()])

        def __contains__(self, item):
            return check()

        def __format__(self, spec):
            check()
            return ""

        def __repr__(self):
            check()
            return ""

        def __bool__(self):
            return bool(check())

        @staticmethod
        def static():
            return check()

        @classmethod
        def make(cls):
            return check()

    class Derived(Thing):
        class Inner:
            check()

        def __init__(self):
            super().__init__()
            check()

    thing = Derived()
    for _ in range(20):
        thing.value
        thing.other
        (
            thing
            + 1
        )
        thing[
            1
        ]
        thing()
        len(thing)
        thing == 1
        hash(thing)
        [*thing]
        1 in thing
        f"{thing} {thing!r}"
        not thing
        thing.static()
        thing.make()
    {thing: 1}
    str(thing)


def test_c_in_between():
    functools.reduce(
        lambda a, b: check(),
        [1, 2, 3],
    )
    sorted([3, 1, 2], key=lambda x: check())
    list(map(check, range(3)))
    list(filter(lambda x: check(), range(3)))
    functools.partial(
        check, 1
    )()
    max([1, 2], key=check)
    [1].sort(key=lambda x: check())
    next(iter(lambda: check(), 2))
    eval("check()")
    eval("(lambda: \n\n check())()")
    exec("check()\nfor i in range(2):\n    check()\n")
    exec(compile("\n\ndef f():\n  check()\nf()", "a file.py", "exec"), {"check": check})


def test_exec_again():
    # New code objects, at addresses where others were: all pointers can be the same, so that only the lines differ.
    for n in range(400):
        exec(compile("\n" * (n % 50) + "check()", "<string>", "exec"))
        exec(compile("x = 1\n" + "\n" * (n % 50) + "x = 2\n" * 40 + "check()\n" + "x = 3\n" * 40, "<string>", "exec"))
        exec(compile("def f():\n" + " \n" * (n % 7) + " check()\nf()", f"/tmp/generated {n % 13:04}.py", "exec"))
        # Nothing but a name differs.
        exec(compile(f"def f_{n % 100:02}(): check()\nf_{n % 100:02}()", "same.py", "exec"), {"check": check})
        exec(compile("def f(): check()\nf()", f"file {n % 100:02}.py", "exec"), {"check": check})


def test_objects_of_other_types():
    class Text(str):
        pass

    for text in (Text("a.py"), Text("ä.py"), Text("\u4e2d.py"), Text("\U0001f40d" * 3), Text(""), Text("x" * 2000)):
        code = compile("def f():\n check()\nf()", text, "exec")
        exec(code, {"check": check})

        def function():
            check()

        function.__code__ = function.__code__.replace(co_name=text, co_filename=text)
        function()


def test_characters():
    for text in ("é", "ÿ" * 300, "ж.py", "日本語", "🐍.py", "a🐍é日", "\udcff.py", "\x01x", "x" * 3000):
        exec(compile("\ncheck()", text, "exec"), {"check": check})

    def función_日本():
        check()

    função = función_日本
    função()


def test_places_without_lines():
    # Code whose tree was made or moved: negative differences, large ones, none.
    source = "def f():\n    check()\n    x = [1,\n check(),\n 2]\n    return check()\nf()"
    for move in (0, 1, 1000, 100_000, 10_000_000):
        tree = ast.increment_lineno(ast.parse(source), move)
        exec(compile(tree, "moved.py", "exec"), {"check": check})
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno, node.end_lineno = 500 - node.lineno, 500
    exec(compile(tree, "reversed.py", "exec"), {"check": check})


def test_large_function():
    body = "\n".join(f"    x{n} = {n}\n    if x{n} == {n // 2}:\n        check()\n" for n in range(700))
    exec(f"def f():\n{body}\n    for i in range(2):\n        check(\n{'1,' * 20}\n)\nf()", {"check": check})
    many = ",\n".join("check()" if n % 50 == 0 else str(n) for n in range(1000))
    exec(f"x = [{many}]", {"check": check})


def test_warm():
    # The interpreter rewrites instructions of what runs often.
    def callee(n):
        if n % 100 == 0 or n < 4:
            check(
                n
            )
        return n

    class Thing:
        def __init__(self, n):
            self.n = callee(
                n
            )

        def method(self):
            return callee(self.n)

        @property
        def value(self):
            return callee(self.n)

        def __getitem__(self, n):
            return callee(n)

    def generate(n):
        for i in range(n):
            yield callee(i)

    total = 0
    for n in range(1500):
        total += Thing(n).method()
        total += Thing(n).value
        total += Thing(n)[
            n
        ]
        total += sum(
            generate(2)
        )


def test_delayed():
    class Node:
        def __del__(self):
            check()

    node = Node()
    del node
    node = Node()
    node.itself = node
    del node
    gc.collect()
    thing = Node()
    weakref.finalize(thing, check)
    reference = weakref.ref(thing, lambda _: check())
    del thing
    assert reference() is None
    signal.signal(signal.SIGUSR1, lambda *_: check())
    os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(1000):
        pass
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_imports():
    with tempfile.TemporaryDirectory() as folder:
        for module in ("plain_module", "módulo"):
            with open(f"{folder}/{module}.py", "w", encoding="utf-8") as file:
                file.write("from hook import check\n\n\ncheck(\n)\n\ndef function():\n    return check()\n")
        sys.path.insert(0, folder)
        try:
            for module in ("plain_module", "módulo"):
                importlib.import_module(module).function()
                importlib.reload(sys.modules[module]).function()
        finally:
            sys.path.remove(folder)


def test_tracing():
    def traced():
        for n in range(3):
            check()
            x = [check() for _ in range(2)]
        try:
            raise ValueError
        except ValueError:
            check(
                x
            )

    def trace(frame, event, argument):
        frame.f_trace_opcodes = True
        if frame.f_code is traced.__code__:
            check()
        return trace

    sys.settrace(trace)
    try:
        traced()
        check()
    finally:
        sys.settrace(None)
    traced()
    sys.setprofile(lambda frame, event, argument: frame.f_code is traced.__code__ and event != "c_call" and check())
    try:
        traced()
    finally:
        sys.setprofile(None)
    traced()


def test_monitoring():
    if not hasattr(sys, "monitoring"):
        check()
        return

    def monitored(depth):
        total = 0
        for n in range(3):
            total += check()
            total += sum(check() for _ in range(2))
        if depth:
            monitored(
                depth - 1
            )
        return total

    monitored(1)
    monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID
    events = monitoring.events
    monitoring.use_tool_id(tool, "test")
    inside = []

    def event(code, *rest):
        if code is monitored.__code__ and not inside:
            inside.append(1)
            check()
            inside.pop()

    try:
        for which in (events.LINE, events.INSTRUCTION, events.CALL | events.PY_START, events.LINE | events.INSTRUCTION):
            for one in (events.LINE, events.INSTRUCTION, events.CALL, events.PY_START):
                monitoring.register_callback(tool, one, event if one & which else None)
            monitoring.set_events(tool, which)
            monitored(1)
            check()
            monitoring.set_events(tool, 0)
            monitored(1)
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    monitored(1)


def test_threads():
    errors = []

    def run():
        try:
            check()
            list(map(lambda n: check(), range(10)))
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_newer_syntax():
    for version, source in (
        ((3, 10), "match check():\n case 1 if (\n  check()):\n  check()\n"),
        ((3, 11), "try:\n raise ExceptionGroup('', [ValueError()])\nexcept* ValueError:\n check()\n"),
        ((3, 12), "def f[T: check()](x: T) -> T:\n return check(\n x)\nf(1)\nf.__type_params__[0].__bound__\n"),
        ((3, 12), "x = f'{check()} {\n check()\n } {[check() for _ in range(2)]}'\n"),
        ((3, 14), "def f(x: check()):\n return check()\nf(1)\nf.__annotations__\n"),
        ((3, 14), "x = t'{check()} {\n check()\n }'\n"),
    ):
        if sys.version_info >= version:
            exec(textwrap.dedent(source), {"check": check})


def test_main_thread_from_here():
    report = hook.call(hook.lib.hook_walk_main)
    wanted, _ = hook.expected(sys._getframe())
    found = report["frames"][1:]
    assert found[0]["function"] == wanted[0]["function"], report
    assert found[1:] == wanted[1:], report
    check()


def test_thread_without_python():
    assert hook.call(hook.lib.hook_walk_bare_thread)["frames"] == []
    check()


hook.main(globals())
