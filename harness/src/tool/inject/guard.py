"""Data layer: checks what an operation is given before its kernel is launched.

Only reports; FAULTLAB_GUARD_RAISE=1 raises GuardError in the place of the launch, so that the context stays alive.
FAULTLAB_GUARD_SAMPLE=100 looks at every 100th element only, from another first element at each check.
"""
import math
import os

import faultlab_inject as inject
import faultlab_layers as layers
import torch
from torch.utils._python_dispatch import TorchDispatchMode

SAMPLE = max(1, int(os.environ.get("FAULTLAB_GUARD_SAMPLE", "1")))
RAISE = os.environ.get("FAULTLAB_GUARD_RAISE") == "1"
SHOWN = 5  # offending values that are named
HELD = 256  # finite checks that wait on the device at most


class GuardError(IndexError):
    """An operation was about to be launched with values that it does not allow."""


class Call:
    """One call of an operation, its arguments by name."""

    def __init__(self, func, args, kwargs):
        self.name = func._schema.name.split("::")[1]
        self.values = dict(zip((a.name for a in func._schema.arguments), args))
        self.values.update(kwargs)

    def __getattr__(self, name):
        return self.values.get(name)


def size(tensor, dim):
    return tensor.shape[dim] if tensor.dim() else 1


def embedding(guard, call):
    guard.bounds(call, "indices", call.indices, 0, size(call.weight, 0))


def along(argument, negative=False):
    def check(guard, call):
        index = call.values.get(argument)
        high = size(call.values["self"], call.dim)
        guard.bounds(call, argument, index, -high if negative else 0, high)

    return check


def take(guard, call):
    high = call.values["self"].numel()
    guard.bounds(call, "index", call.index, -high, high)


def advanced(guard, call):
    shape, dim = call.values["self"].shape, 0
    for at, index in enumerate(call.indices):
        if index is None:
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
        else:
            guard.bounds(call, f"indices[{at}]", index, -shape[dim], shape[dim])
            dim += 1


def labels(guard, call):
    scores = call.values["self"]
    classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
    guard.bounds(call, "target", call.target, 0, classes, call.ignore_index)


def probability(argument):
    def check(guard, call):
        guard.bounds(call, argument, call.values.get(argument), 0.0, 1.0, closed=True)

    return check


def weights(guard, call):
    guard.bounds(call, "self", call.values["self"], 0.0, math.inf)


def repeats(guard, call):
    guard.bounds(call, "repeats", call.repeats, 0, math.inf)


def finite(*arguments):
    def check(guard, call):
        for argument in arguments:
            guard.finite(call, argument, call.values.get(argument))

    return check


CHECKS = {
    **dict.fromkeys(["embedding", "_embedding_bag", "_embedding_bag_forward_only"], embedding),
    **dict.fromkeys(
        ["gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"]
        + ["index_select", "index_add", "index_add_", "index_copy", "index_copy_"],
        along("index"),
    ),
    **dict.fromkeys(["index_fill", "index_fill_"], along("index", negative=True)),
    **dict.fromkeys(["take", "put", "put_"], take),
    **dict.fromkeys(["index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"], advanced),
    **dict.fromkeys(["nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss"], labels),
    "multinomial": weights,
    "bernoulli": probability("self"),
    "bernoulli_": probability("p"),
    "binary_cross_entropy": probability("self"),
    "repeat_interleave": repeats,
    "mm": finite("self", "mat2"),
    "bmm": finite("self", "mat2"),
    "addmm": finite("mat1", "mat2"),
    "baddbmm": finite("batch1", "batch2"),
    "convolution": finite("input", "weight"),
    "convolution_backward": finite("grad_output"),
    "mse_loss": finite("self", "target"),
}
WAITS = {"_local_scalar_dense"}  # here the program itself waits for the device


class Guard(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.off = False
        self.finite_off = False
        self.checks = 0
        self.flags = layers.Flags()
        self.known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.off:
            check = self.known.get(func, self)
            if check is self:
                namespace, name = func._schema.name.split("::")
                check = CHECKS.get(name) or (Guard.drain if name in WAITS else None)
                check = self.known[func] = check if namespace == "aten" else None
            if check is not None:
                try:
                    if not layers.capturing():
                        check(self, Call(func, args, kwargs))
                except GuardError:
                    raise
                except Exception as error:
                    self.give_up(func, error)
        return func(*args, **kwargs)

    def give_up(self, func, error):
        """A check failed itself: most likely it was the first to wait after a fault of another kernel."""
        if layers.is_cuda_error(error):
            self.off = True
            what = f"an earlier kernel had failed when the inputs of {func} were checked; the check did not find it"
        else:
            what = f"a check of {func} failed and was left out: {type(error).__name__}: {error}"
            self.known[func] = None
        inject.report(what, python=layers.said(layers.stack()), note=True)

    def picked(self, tensor):
        """The elements that are looked at, flat, and the place of the first in the whole."""
        flat = tensor.detach().reshape(-1)
        if SAMPLE == 1:
            return flat, 0
        self.checks += 1
        first = self.checks * 37 % min(SAMPLE, flat.numel())
        return flat[first::SAMPLE], first

    def bounds(self, call, argument, tensor, low, high, ignored=None, closed=False):
        """Before the launch: low <= value < high (<= high if closed), or ignored. One wait for the device."""
        if not layers.plain(tensor) or tensor.numel() == 0 or tensor.dtype == torch.bool:
            return
        values, first = self.picked(tensor)
        extremes = torch.stack(torch.aminmax(values.float() if values.dtype == torch.half else values)).tolist()
        above = high if closed else math.nextafter(high, -math.inf) if isinstance(high, float) else high - 1
        if low <= extremes[0] and extremes[1] <= above:
            return
        bad = ~((values >= low) & (values <= above))  # NaN is bad too
        if ignored is not None:
            bad &= values != ignored
        places = bad.nonzero().reshape(-1)
        if places.numel() == 0:
            return
        shown = places[:SHOWN]
        named = [
            f"{argument}{self.position(at * SAMPLE + first, tensor.shape)} = {value}"
            for at, value in zip(shown.tolist(), values[shown].tolist())
        ]
        allowed = f"[{low}, {high}{']' if closed else ')'}"
        if ignored is not None and not low <= ignored < high:
            allowed += f" or {ignored} (ignored)"
        sampled = f" looked at, every {SAMPLE}th" if SAMPLE > 1 else ""
        message = (
            f"{call.name}: {places.numel()} of {values.numel()} values of `{argument}`{sampled} outside {allowed}: "
            + ", ".join(named)
        )
        self.off = tensor.is_cuda and not RAISE  # the context does not survive this launch
        self.say(message, named)

    def finite(self, call, argument, tensor):
        """Not fatal, so the answer may come later: it stays on the device until the program waits."""
        if self.finite_off or not layers.plain(tensor) or tensor.numel() == 0 or not tensor.is_floating_point():
            return
        values, _ = self.picked(tensor)
        at_once = not tensor.is_cuda or layers.BLOCKING
        light = None if at_once else layers.stack()
        backward = torch._C._current_autograd_node() is not None
        self.flags.add(values, (call.name, argument, tuple(tensor.shape), light, backward))
        if at_once or len(self.flags.waiting) >= HELD:
            self.drain()

    def drain(self, _=None):
        for (name, argument, shape, light, backward), low, high in self.flags.read():
            if math.isfinite(low) and math.isfinite(high) or self.finite_off:
                continue
            where = ", in backward" if backward else ""
            message = f"{name}{where}: `{argument}` of shape {list(shape)} is not finite: from {low} to {high}"
            # A gradient scaler makes infinities on purpose, and skips the step.
            scaled = backward and layers.Scaling.used
            self.finite_off = not scaled  # all that follows from it is not finite either
            inject.report(message, layers.said(light or layers.stack()), [f"{argument}: min {low}, max {high}"], note=scaled)
            if RAISE and not scaled:
                raise GuardError(message)

    def say(self, message, named):
        inject.report(message, layers.said(layers.stack()), named)
        if RAISE:
            raise GuardError(message)

    @staticmethod
    def position(flat, shape):
        place = []
        for extent in reversed(shape):
            place.append(flat % extent)
            flat //= extent
        return list(reversed(place)) or ""


def finish(guard):
    """At the end of the process: what still waits on the device."""
    if guard.off:
        return
    try:
        guard.drain()
    except Exception:
        pass  # the device is gone, or has gone before: the program has been told


def activate(torch):
    import atexit

    layers.Scaling.watch()
    guard = Guard()
    guard.__enter__()
    atexit.register(finish, guard)
    return "checks " + ("every element" if SAMPLE == 1 else f"every {SAMPLE}th element")
