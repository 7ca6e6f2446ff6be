"""Names the first value that is not finite, without waiting for the device.

A check is one reduction (the largest magnitude, which NaN and infinity survive) that writes one number into a
preallocated buffer on the tensor's own stream. After every EVERY checks the buffers are copied to pinned memory, again
on their streams. The pinned numbers start as -1, which no magnitude is, so that the host sees what has arrived by
reading memory: no event, no synchronisation, nothing that a stream capture forbids. What has arrived is judged in the
order in which the program asked for it.

Levels (FAULTLAB_RECORDER_NAN):
- `1`     inputs, parameters and outputs of modules
- `grad`  also the gradients of the outputs of modules
- `ops`   every operator that passes the dispatcher, of the backward pass too; functions of torch.compile run uncompiled

`nan.<pid>.jsonl`, one object a line, each with a `type`:
- start   the check is on: `level`, `torch`
- nan     the first NaN: `what` (output, input, parameter, gradient, operator), `module`, `class`, `op`, `node`,
          `inputs` and `parameters` (finite, infinite, nan, unknown), `made` (whether it was made there), `frames`
          (innermost first), `forward` (frames of the forward operator, for one of the backward pass), `text`; and
          `root`, of the same form, where an infinity came first, or another module made it
- inf     infinities without a NaN, at exit: the first one
- exit    `checks`, `skipped` (no free buffer), `nonfinite`
"""
import atexit
import os
import sys
import threading
import time
import weakref

import faultlab_shim as shim

EVERY = 256  # checks between two copies to the host
PENDING = 64  # copies that may be under way
FRAMES = 12  # a check
REMEMBERED = 65536  # tensors whose check is known
KEPT = 16384  # checks that were not finite
TENSORS = 16  # of one call
EXIT_WAIT = 2.0  # seconds at exit for what is still on its way

FINITE, INF, NAN, UNKNOWN = "finite", "infinite", "nan", "unknown"
WORST = {FINITE: 0, UNKNOWN: 1, INF: 2, NAN: 3}


def install(level):
    shim.AfterImport({"torch": lambda torch: _start(torch, level)}).install()


def _start(torch, level):
    if level not in ("1", "grad", "ops"):
        shim.notice(f"FAULTLAB_RECORDER_NAN={level} is not known: use 1, grad or ops; taken as 1")
        level = "1"
    checker = Checker(torch, level)
    if level == "ops":
        Operators(torch, checker).install()
    else:
        Modules(torch, checker, level == "grad").install()
    checker.install()


class Lane:
    """Buffers of a device, a stream and a dtype."""

    def __init__(self, torch, device, stream, dtype):
        self.torch, self.device, self.stream, self.dtype = torch, device, stream, dtype
        self.free = []
        self.block = None

    def new_block(self):
        torch = self.torch
        with torch.inference_mode(False), torch.no_grad():
            values = torch.zeros(EVERY, dtype=self.dtype, device=self.device)
            arrived = values
            if self.stream is not None:
                arrived = torch.full((EVERY,), -1.0, dtype=self.dtype, pin_memory=True)
            return Block(self, values, values.unbind(), arrived)


class Block:
    """EVERY numbers on the device and, for what has arrived, on the host."""

    def __init__(self, lane, values, slots, arrived):
        self.lane, self.values, self.slots, self.arrived = lane, values, slots, arrived
        self.checks = []  # of the slots in use

    def send(self):
        """Starts the copy to the host, behind the checks on their stream."""
        if self.lane.stream is not None:
            with self.lane.torch.cuda.stream(self.lane.stream):
                self.arrived.copy_(self.values, non_blocking=True)

    def result(self):
        """The numbers, or None as long as one is on its way."""
        used = len(self.checks)
        if self.lane.stream is not None and used and self.arrived[used - 1].item() == -1.0:
            return None
        numbers = self.arrived[:used].tolist()
        return None if any(n == -1.0 for n in numbers) else numbers

    def recycle(self):
        self.checks = []
        if self.lane.stream is not None:
            self.arrived.fill_(-1.0)
        self.lane.free.append(self)


class Check:
    """What one number stands for."""

    __slots__ = ("seq", "what", "name", "frames", "forward", "inputs", "parameters", "group", "deliberate", "node",
                 "state", "origin", "made", "shape")

    def __init__(self, what, name, frames, inputs=(), parameters=(), group=0, forward=(), deliberate=False, node=None,
                 shape=""):
        self.what, self.name, self.frames, self.inputs, self.parameters = what, name, frames, inputs, parameters
        self.group, self.forward, self.deliberate, self.node, self.shape = group, forward, deliberate, node, shape
        self.seq, self.state, self.origin, self.made = 0, FINITE, None, False


class Checker:
    """Asks for checks, collects them, and reports the first NaN."""

    def __init__(self, torch, level):
        self.torch, self.level = torch, level
        self.lock = threading.RLock()
        self.local = threading.local()
        self.plain = tuple(
            t for t in (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", None)) if isinstance(t, type))
        self.dtypes = {torch.float16: torch.float16, torch.bfloat16: torch.bfloat16, torch.float32: torch.float32,
                       torch.float64: torch.float64, torch.complex64: torch.float32, torch.complex128: torch.float64}
        self.capturing = 0
        self.exited = False
        self.package = os.path.dirname(torch.__file__) + os.sep
        self.own = {}  # code object -> whether its frames are left out
        self.off = False
        self.reset()

    def reset(self):
        self.lanes, self.active, self.sent = {}, [], []
        self.asked = self.seq = self.skipped = self.nonfinite = 0
        self.bad = {}  # seq -> Check that was not finite, the newest KEPT
        self.forgotten = 0  # the newest one that is not kept
        self.first_inf = None
        self.reported = self.started = False

    def install(self):
        torch = self.torch
        atexit.register(self.finish)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        graph = getattr(torch.cuda, "CUDAGraph", None)
        if graph is not None:  # a capture on another thread forbids what this one may do
            self._count(graph, "capture_begin", 1, before=True)
            self._count(graph, "capture_end", -1, before=False)

    def _forked(self):
        self.lock = threading.RLock()
        self.reset()

    def _count(self, cls, name, step, before):
        original = getattr(cls, name, None)
        if original is None:
            return

        def counted(graph, *args, **kwargs):
            if before:
                self.capturing += step
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                if before:
                    self.capturing -= step
                raise
            finally:
                if not before:
                    self.capturing = max(0, self.capturing + step)

        setattr(cls, name, counted)

    def start(self):
        """Proof that the check is on, before the first one."""
        self.started = True
        shim.append("nan", {"type": "start", "pid": os.getpid(), "level": self.level,
                            "torch": str(self.torch.__version__)})

    # --- asking ---------------------------------------------------------------------------------------------------

    def able(self):
        """Whether a check may be made here and now."""
        torch = self.torch
        if self.off or self.capturing or getattr(self.local, "busy", False):
            return False
        if torch._C._get_tracing_state() is not None:
            return False
        functorch = getattr(torch._C, "_functorch", None)
        peek = getattr(functorch, "peek_interpreter_stack", None)
        return peek is None or peek() is None

    def checkable(self, t):
        """Whether it is an ordinary tensor with numbers behind it: a sharded parameter's memory may be given back."""
        torch = self.torch
        return (type(t) in self.plain and t.dtype in self.dtypes and t.layout is torch.strided
                and t.device.type in ("cpu", "cuda") and t.numel() > 0 and not t.is_nested
                and not torch._is_functional_tensor(t) and not t._is_zerotensor() and t.untyped_storage().nbytes() > 0)

    def ask(self, t, check):
        """Checks a tensor. Returns the check's number, or 0 where there was none."""
        torch = self.torch
        if t.is_cuda and torch.cuda.is_current_stream_capturing():
            return 0
        self.local.busy = True
        try:
            with self.lock, Quiet(torch):
                if not self.started:
                    self.start()
                block = self._block(t)
                if block is None:
                    self.skipped += 1
                    return 0
                torch.linalg.vector_norm(t, float("inf"), out=block.slots[len(block.checks)])
                self.seq += 1
                check.seq = self.seq
                block.checks.append(check)
                self.asked += 1
                if self.asked >= EVERY:
                    self.send()
                    self.collect()
                return check.seq
        except Exception as error:  # a device that failed, memory that ran out: the program finds out by itself
            self.skipped += 1
            if "CUDA" in str(error) and not isinstance(error, torch.cuda.OutOfMemoryError):
                self.off = True  # no check can work any more
            else:
                shim.notice(f"a check for NaN was left out: {error!r}"[:300])
            return 0
        finally:
            self.local.busy = False

    def _block(self, t):
        dtype = self.dtypes[t.dtype]
        if t.is_cuda:
            stream = self.torch.cuda.current_stream(t.device)
            key = (t.device.index, stream.stream_id, dtype)
        else:
            stream, key = None, ("cpu", dtype)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(self.torch, t.device, stream, dtype)
        if lane.block is None:
            if len(self.sent) >= PENDING:
                self.collect()
                if len(self.sent) >= PENDING:
                    return None
            lane.block = lane.free.pop() if lane.free else lane.new_block()
            self.active.append(lane)
        return lane.block

    def send(self):
        """Sends what all lanes have, so that the order of checks is known again."""
        blocks = []
        for lane in self.active:
            lane.block.send()
            blocks.append(lane.block)
            lane.block = None
        self.active, self.asked = [], 0
        if blocks:
            self.sent.append(blocks)

    # --- judging --------------------------------------------------------------------------------------------------

    def collect(self):
        """Judges what has arrived, in order; returns whether nothing is on its way any more."""
        while self.sent:
            blocks = self.sent[0]
            found = []
            for block in blocks:
                numbers = block.result()
                if numbers is None:
                    return False
                found += [(c, n) for c, n in zip(block.checks, numbers) if not n - n == 0.0]
            self.sent.pop(0)
            for block in blocks:
                block.recycle()
            for check, number in sorted(found, key=lambda f: f[0].seq):
                self.judge(check, NAN if number != number else INF)
        return True

    def state(self, seqs):
        """The worst of some checks."""
        worst = FINITE
        for seq in seqs:
            known = self.bad.get(seq)
            if known is not None:
                state = known.state
            else:
                state = UNKNOWN if seq <= self.forgotten else FINITE
            if WORST[state] > WORST[worst]:
                worst = state
        return worst

    def judge(self, check, state):
        self.nonfinite += 1
        check.state = state
        sources = [self.bad[s] for s in (*check.inputs, *check.parameters) if s in self.bad]
        check.made = not any(s.state == NAN or (s.state == INF and state == INF) for s in sources)
        nan_first = sorted(sources, key=lambda s: (s.state != NAN, s.deliberate, s.seq))
        check.origin = (nan_first[0].origin or nan_first[0]) if nan_first else None
        self.bad[check.seq] = check
        if len(self.bad) > KEPT:
            self.forgotten = next(iter(self.bad))
            del self.bad[self.forgotten]
        if state == INF and check.made and self.first_inf is None and not check.deliberate and check.what != "input":
            self.first_inf = check
        if state == NAN and not self.reported:
            self.reported = True
            self.report("nan", check, self.root(check))

    def root(self, check):
        """The check that explains this one: where its infinity was made, or the module that made the first bad value."""
        origin = check.origin
        if origin is not None and (origin.deliberate or origin.what == "input"):
            origin = None
        if not isinstance(check.name, Path) or check.what == "gradient":
            return origin
        # Between modules values are not followed: what counts is the order, in the same call of the outermost module.
        # An infinity of a module is looked for in what that module called.
        made = [c for c in self.bad.values() if c.group == check.group and c.seq < check.seq and c.made
                and c.what == "output" and not c.deliberate]
        if origin is not None:
            made = [c for c in made if c.name.within(origin.name)] or [origin]
        return min(made, key=lambda c: c.seq, default=None)

    # --- reporting ------------------------------------------------------------------------------------------------

    def report(self, kind, check, root):
        record = {"type": kind, "pid": os.getpid(), **self.record(check)}
        if root is not None and root is not check:
            record["root"] = self.record(root)
        shim.append("nan", record)
        title = "the first NaN" if kind == "nan" else "an infinity, and no NaN after it (it may be meant)"
        lines = [f"{title}: {record['text']}"] + self.where(check)
        if "root" in record:
            word = "first infinite" if root.state == INF else "made"
            lines += [f"{word}: {record['root']['text']}"] + self.where(root)
        try:
            sys.stderr.write("".join(f"faultlab: {line}\n" for line in lines))
            sys.stderr.flush()
        except Exception:
            pass

    def record(self, check):
        module, cls = check.name.resolve() if isinstance(check.name, Path) else (None, None)
        inputs, parameters = self.state(check.inputs), self.state(check.parameters)
        record = {"what": check.what, "state": check.state, "seq": check.seq, "made": check.made, "inputs": inputs,
                  "frames": _frames(check.frames)}
        if module is not None:
            record.update({"module": module, "class": cls, "parameters": parameters})
        else:
            record["op"] = str(check.name)
        if check.node:
            record["node"] = check.node
        if check.forward:
            record["forward"] = _frames(check.forward)
        subject = f"`{module}` ({cls})" if module is not None else str(check.name)
        text = {"output": f"the output of {subject}", "input": f"an input of {subject}",
                "parameter": f"a parameter of {subject}", "gradient": f"the gradient of the output of {subject}",
                "operator": f"the result of {subject}"}[check.what]
        if check.shape:
            text += f", {check.shape}"
        if check.node:
            text += f", in the backward pass ({check.node})"
        if check.what in ("output", "operator"):
            said = {FINITE: "its inputs were finite", INF: "an input was infinite", NAN: "an input was NaN already",
                    UNKNOWN: "not all of its inputs were checked"}[inputs]
            if parameters in (INF, NAN):
                said += f", a parameter was {parameters if parameters == INF else 'NaN already'}"
            text += f"; {said}" + (": it was made here" if check.made and inputs == FINITE else "")
        elif check.what == "input":
            text += "; it was made before this call, by code that no module's output shows"
        elif check.what == "gradient":
            text += "; it was made in the backward pass of what uses that output"
        record["text"] = text
        return record

    def where(self, check):
        lines = [("forward: " + _at(f)) for f in _frames(check.forward) if f["user"]][:4]
        if lines:
            return [f"  {line}" for line in lines]
        frames = _frames(check.frames)
        own = [f for f in frames if f["user"]] or frames
        return [f"  at {_at(f)}" for f in own[:4]]

    def finish(self):
        """At exit: waits a moment for what is on its way, then says what is left to say."""
        if self.exited or not self.lock.acquire(timeout=EXIT_WAIT):
            return
        try:
            self.exited = self.off = True
            try:
                if not self.capturing:
                    self.send()
                end = time.monotonic() + EXIT_WAIT
                while not self.collect() and time.monotonic() < end:
                    time.sleep(0.001)
            except Exception:  # the device may be gone
                pass
            if self.first_inf is not None and not self.reported:
                self.report("inf", self.first_inf, None)
            if not self.started:
                if sys.argv[:1] == ["-c"]:  # a helper of a library, which tries something out
                    return
                self.start()
            shim.append("nan", {"type": "exit", "pid": os.getpid(), "checks": self.seq, "skipped": self.skipped,
                                "nonfinite": self.nonfinite, "arrived": not self.sent})
        finally:
            self.lock.release()

    # --- frames ---------------------------------------------------------------------------------------------------

    def stack(self, frame):
        """((code, line), …) of the calling frames outside torch, innermost first."""
        found, own = [], self.own
        while frame is not None and len(found) < FRAMES:
            code = frame.f_code
            left_out = own.get(code)
            if left_out is None:
                left_out = code.co_filename.startswith((self.package, shim.HERE + os.sep, "<frozen"))
                if len(own) < REMEMBERED:
                    own[code] = left_out
            if not left_out:
                found.append((code, frame.f_lineno or 0))
            frame = frame.f_back
        return tuple(found)


class Quiet:
    """No autograd, no modes: what a check does is not seen by the program's own instruments."""

    def __init__(self, torch):
        self.guards = [torch._C._AutoDispatchBelowAutograd()]
        if torch._C._len_torch_dispatch_stack() > 0:
            self.guards.append(torch._C._DisableTorchDispatch())
        if torch._C._len_torch_function_stack() > 0:
            self.guards.append(torch._C.DisableTorchFunction())

    def __enter__(self):
        for i, guard in enumerate(self.guards):
            try:
                guard.__enter__()
            except BaseException:
                self.guards = self.guards[:i]
                self.__exit__(None, None, None)
                raise

    def __exit__(self, *error):
        for guard in reversed(self.guards):
            guard.__exit__(*error)


def _frames(stack):
    return [{"file": c.co_filename, "line": n, "function": getattr(c, "co_qualname", c.co_name),
             "user": shim.is_user(c.co_filename)} for c, n in stack]


def _at(frame):
    return f"{frame['file']}:{frame['line']} in {frame['function']}"


def tensors(value, found=None, depth=0):
    """The tensors of arguments or results, a few levels deep."""
    found = [] if found is None else found
    if len(found) >= TENSORS or depth > 3:
        return found
    if hasattr(value, "untyped_storage"):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value[:TENSORS]:
            tensors(v, found, depth + 1)
    elif isinstance(value, dict):
        for v in list(value.values())[:TENSORS]:
            tensors(v, found, depth + 1)
    elif hasattr(value, "__dataclass_fields__"):
        tensors({k: getattr(value, k, None) for k in value.__dataclass_fields__}, found, depth + 1)
    return found


class Path:
    """A module under its callers: outermost first, as weak references."""

    __slots__ = ("modules",)

    def __init__(self, modules):
        self.modules = modules

    def within(self, other):
        """Whether it was called by another, or is the same."""
        return isinstance(other, Path) and self.modules[: len(other.modules)] == other.modules

    def resolve(self):
        """(qualified name in the outermost module, class)"""
        modules = [m for m in (ref() for ref in self.modules) if m is not None]
        if not modules:
            return "?", "?"
        leaf = modules[-1]
        for root in modules:  # one that stayed on the stack after an exception is no ancestor
            for name, module in root.named_modules():
                if module is leaf:
                    return name or type(leaf).__name__, type(leaf).__name__
        return type(leaf).__name__, type(leaf).__name__


class Modules:
    """Global hooks around every module call."""

    def __init__(self, torch, checker, gradients):
        self.torch, self.checker, self.gradients = torch, checker, gradients
        self.local = threading.local()
        self.known = {}  # id -> (weak reference, version, number of the check)
        self.calls = 0

    def install(self):
        torch = self.torch
        before, after = self.before, self.after
        compiling = torch.compiler.is_compiling if hasattr(torch, "compiler") else torch._dynamo.is_compiling

        # Inside a compiled function the first line is a constant, and the compiler leaves the rest out.
        def faultlab_before(module, args):
            if compiling():
                return None
            before(module, args)
            return None

        def faultlab_after(module, args, output):
            if compiling():
                return None
            after(module, output)
            return None

        torch.nn.modules.module.register_module_forward_pre_hook(faultlab_before)
        torch.nn.modules.module.register_module_forward_hook(faultlab_after)

    def stack(self):
        calls = getattr(self.local, "stack", None)
        if calls is None:
            calls = self.local.stack = []
        return calls

    def before(self, module, args):
        try:
            stack = self.stack()
            if len(stack) >= 256:  # of calls that ended in exceptions
                del stack[:]
            if not stack:
                self.calls += 1
                self.local.group = self.calls
            stack.append([weakref.ref(module), None, None, None])
            if not self.checker.able():
                return
            group = self.local.group
            path = Path(tuple(entry[0] for entry in stack))
            frames = self.checker.stack(sys._getframe(2))
            inputs = tuple(self.number(t, "input", path, frames, group) for t in tensors(args))
            parameters = tuple(self.number(p, "parameter", path, frames, group)
                               for p in list(module._parameters.values())[:TENSORS] if p is not None)
            stack[-1][1:] = [inputs, parameters, frames]
        except Exception as error:
            shim.notice(f"a module is not checked for NaN: {error!r}"[:300])

    def after(self, module, output):
        try:
            stack, entry = self.stack(), None
            path = None
            for i in range(len(stack) - 1, -1, -1):  # what is above it ended in an exception
                if stack[i][0]() is module:
                    path = Path(tuple(e[0] for e in stack[: i + 1]))
                    entry = stack[i]
                    del stack[i:]
                    break
            if entry is None or entry[1] is None or not self.checker.able():
                return
            _, inputs, parameters, frames = entry
            for t in tensors(output):
                if not self.checker.checkable(t) or self.lookup(t):  # a container hands on what its last module made
                    continue
                check = Check("output", path, frames, inputs, parameters, self.local.group, shape=_shape(t))
                self.remember(t, self.checker.ask(t, check))
                if self.gradients and t.requires_grad and t.grad_fn is not None:
                    self.gradient(t, path, frames)
        except Exception as error:
            shim.notice(f"a module is not checked for NaN: {error!r}"[:300])

    def gradient(self, t, path, frames):
        checker, group = self.checker, self.local.group

        def faultlab_gradient(grad):
            try:
                if not self.torch.compiler.is_compiling() and checker.able() and checker.checkable(grad):
                    checker.ask(grad, Check("gradient", path, frames, group=-group, shape=_shape(grad)))
            except Exception as error:
                shim.notice(f"a gradient is not checked for NaN: {error!r}"[:300])

        t.register_hook(faultlab_gradient)

    def number(self, t, what, path, frames, group):
        """The number of the tensor's last check; it is checked now if it never was, or was changed since."""
        if not self.checker.checkable(t):
            return 0
        number = self.lookup(t)
        if not number:
            number = self.checker.ask(t, Check(what, path, frames, group=group, shape=_shape(t)))
            self.remember(t, number)
        return number

    def lookup(self, t):
        known = self.known.get(id(t))
        if known is not None and known[0]() is t and known[1] == _version(t):
            return known[2]
        return 0

    def remember(self, t, number):
        if len(self.known) >= REMEMBERED:
            self.known.clear()
        self.known[id(t)] = (weakref.ref(t), _version(t), number)


def _version(t):
    return -1 if t.is_inference() else t._version


def _shape(t):
    return f"{str(t.dtype)[6:]}{list(t.shape)}"


# Results that nobody has written yet.
EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_")


class Operators:
    """A dispatch mode that checks the results of every operator."""

    def __init__(self, torch, checker):
        self.torch, self.checker = torch, checker
        self.known = {}  # address -> number of the check of what was written there
        self.forward = {}  # sequence number of an autograd node -> frames of its forward operator
        self.schemas = {}
        self.sequence = getattr(torch._C._autograd, "_get_sequence_nr", None)
        self.node = getattr(torch._C, "_current_autograd_node", None)

    def install(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        outer = self

        class FaultlabFiniteCheck(TorchDispatchMode):
            supports_higher_order_operators = True  # they are passed on, and their results checked

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                kwargs = kwargs or {}
                before = outer.before(func, args, kwargs)
                result = func(*args, **kwargs)
                if before is not None:
                    outer.after(func, before, result)
                return result

        FaultlabFiniteCheck().__enter__()

    def schema(self, func):
        """Whether the result is a view, and whether it is not written yet."""
        known = self.schemas.get(func)
        if known is None and not hasattr(func, "_schema"):
            known = self.schemas[func] = (False, False)
        if known is None:
            returns = func._schema.returns
            name = func._schema.name.rpartition("::")[2]
            view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
            known = self.schemas[func] = (view, name in EMPTY)
        return known

    def before(self, func, args, kwargs):
        try:
            if not self.checker.able():
                return None
            frames = self.checker.stack(sys._getframe(2))
            node, forward = None, ()
            current = self.node() if self.node else None
            if current is not None:
                node = current.name()
                forward = self.forward.get(current._sequence_nr(), ())
            if self.sequence is not None and self.torch.is_grad_enabled():
                if len(self.forward) >= REMEMBERED:
                    self.forward.clear()
                # The node that this operator belongs to was made just before it.
                self.forward.setdefault(self.sequence() - 1, forward or frames)
            given = tensors((args, kwargs))
            inputs = tuple(self.number(t, frames, forward, node) for t in given if self.checker.checkable(t))
            return given, inputs, frames, forward, node, _has_inf((args, kwargs))
        except Exception as error:
            shim.notice(f"an operator is not checked for NaN: {error!r}"[:300])
            return None

    def number(self, t, frames, forward, node):
        known = self.known.get(t.data_ptr())
        if known is None:
            known = self.checker.ask(t, Check("input", "a tensor from before", frames, forward=forward, node=node,
                                              shape=_shape(t)))
            self.remember(t, known)
        return known

    def remember(self, t, number):
        if len(self.known) >= REMEMBERED:
            self.known.clear()
        self.known[t.data_ptr()] = number

    def after(self, func, before, result):
        try:
            given, inputs, frames, forward, node, deliberate = before
            view, empty = self.schema(func)
            for t in tensors(result):
                if not self.checker.checkable(t):
                    continue
                if view:
                    if given and t.data_ptr() not in self.known:
                        self.remember(t, self.known.get(given[0].data_ptr(), 0))
                elif empty:
                    self.known.pop(t.data_ptr(), None)
                    self.remember(t, 0)
                else:
                    check = Check("operator", str(func), frames, inputs, forward=forward, deliberate=deliberate,
                                  node=node, shape=_shape(t))
                    self.remember(t, self.checker.ask(t, check))
        except Exception as error:
            shim.notice(f"an operator is not checked for NaN: {error!r}"[:300])


def _has_inf(value, depth=0):
    """Whether a Python number that is not finite was given: a mask, a bound. Then the result is meant."""
    if isinstance(value, float):
        return value - value != 0.0
    if isinstance(value, (list, tuple)) and depth < 3:
        return any(_has_inf(v, depth + 1) for v in value[:TENSORS])
    if isinstance(value, dict) and depth < 3:
        return any(_has_inf(v, depth + 1) for v in value.values())
    return False
