"""Module layer: the first module whose output is not finite (or not of the declared shape), the first backward node
that makes a gradient that is not finite, with its forward line, and the module in which an error is raised.

In async mode the flags stay on the device. It waits before and after each outermost forward, each backward and each
optimizer step: an asynchronous error that surfaces in between belongs to that piece of work.
FAULTLAB_ISOLATE_SHAPES: JSON, or the name of a JSON file: {"encoder.head": [null, 10]}, by module path or class.
"""
import json
import math
import os
import sys
import threading
import weakref

import faultlab_inject as inject
import faultlab_layers as layers
import torch
from torch.overrides import TorchFunctionMode

MARK = "faultlab"  # the key of a mark in a node's metadata


def tensors(value, depth=0):
    """The tensors of an output."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for item in value.values():
            yield from tensors(item, depth + 1)


def declared():
    text = os.environ.get("FAULTLAB_ISOLATE_SHAPES", "")
    if not text:
        return {}
    if not text.lstrip().startswith("{"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    return json.loads(text)


class Isolate:
    def __init__(self):
        self.local = threading.local()
        self.names = weakref.WeakKeyDictionary()
        self.learned = weakref.WeakSet()
        self.misshapen = set()
        self.shapes = declared()
        self.flags = layers.Flags()
        self.found = False  # what is not finite later follows from the first
        self.lost = False  # the device is gone
        self.spoilt = False  # a parameter is not finite
        self.raised = None  # [error's identity, innermost module, outermost module, light frames of its call]

    # --- names

    def name(self, module):
        return self.names.get(module) or type(module).__name__

    def learn(self, root):
        if root in self.learned:
            return
        self.learned.add(root)
        for path, module in root.named_modules():
            self.names.setdefault(module, path or type(root).__name__)

    def stack(self):
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        return self.local.stack

    # --- waiting

    def wait(self, what, light, module=None):
        """Waits for the device and reads the flags. An error that comes up here belongs to `what`."""
        if self.lost or layers.capturing():
            return
        try:
            if layers.on_gpu():
                torch.cuda.synchronize()
            flags = self.flags.read()
        except Exception as error:
            self.lose(error, what, light, module)
            return
        for say, low, high in flags:
            say(low, high)

    def lose(self, error, what, light, module=None):
        """A call of the tool's own got an error of the device; what came before `what` had been waited for."""
        if self.lost:
            return
        if not layers.is_cuda_error(error):
            self.trouble(error)
            return
        self.lost = True
        self.flags.waiting = []
        first = str(error).split("\n")[0]
        kind = type(error).__name__
        if what is None:
            inject.report(f"the device failed outside of every module, before this line has ended: {first}", layers.said(light),
                          error_type=kind, note=True)
        else:
            inject.report(f"the device failed in {what}: {first}", layers.said(light), error_type=kind, module=module)

    # --- forward

    def before(self, module, args):
        try:
            stack = self.stack()
            light = None
            if not stack:
                self.learn(module)
                light = layers.stack()
                if layers.on_gpu() and not layers.BLOCKING:
                    self.wait(None, light)
            stack.append((weakref.ref(module), sys.exc_info()[1], light))
        except Exception as error:
            self.trouble(error)

    def after(self, module, args, output):
        try:
            stack, entry = self.stack(), None
            while stack:
                entry = stack.pop()
                if entry[0]() is module:
                    break
            if entry is None:
                return
            outermost = not stack
            error = sys.exc_info()[1]
            if error is not None and error is not entry[1]:
                self.failed(module, error, outermost, entry)
                return
            if not self.found and not self.lost and not layers.capturing():
                try:
                    self.look(module, output)
                except Exception as error:
                    # It may stem from any launch since the outermost forward began.
                    outer = stack[0] if stack else entry
                    root = outer[0]()
                    what = f"the forward of {self.name(root)}" + ("" if outermost else f", at the latest in {self.name(module)}")
                    self.lose(error, what, outer[2] or layers.stack(), self.name(root))
            if outermost and not torch._C._current_autograd_node():
                self.wait(f"the forward of {self.name(module)}", entry[2], self.name(module))
        except Exception as error:
            self.trouble(error)

    def look(self, module, output):
        name, light = self.name(module), layers.stack()
        for at, tensor in enumerate(tensors(output)):
            shape = self.shapes.get(name, self.shapes.get(type(module).__name__)) if at == 0 else None
            if shape is not None and name not in self.misshapen and not (
                len(shape) == tensor.dim() and all(s in (None, n) for s, n in zip(shape, tensor.shape))
            ):
                self.misshapen.add(name)
                inject.report(f"the output of {name} has shape {list(tensor.shape)}, declared is {shape}",
                              layers.said(light), module=name)
            self.flags.add(tensor, lambda low, high, t=tuple(tensor.shape): self.output(name, t, low, high, light))
        if not layers.on_gpu() or layers.BLOCKING:
            self.wait(f"the forward of {name}", light, name)

    def output(self, name, shape, low, high, light):
        # Minus infinity alone is how masks and log(0) look.
        if self.found or math.isfinite(high) and not math.isnan(low) or (high == low == -math.inf):
            return
        self.found = True
        inject.report(f"{name} is the first module whose output is not finite: shape {list(shape)}, from {low} to {high}",
                      layers.said(light), [f"output of {name}: min {low}, max {high}"], module=name)

    def failed(self, module, error, outermost, entry):
        """An error passes through `module`; the first that sees it is the innermost."""
        if self.raised is None or self.raised[0] != identity(error):
            self.raised = [identity(error), self.name(module), None, None]
        if outermost:
            self.raised[2:] = [self.name(module), entry[2]]

    def ended(self, error):
        """The program ends in `error`: was it raised in a module?"""
        chain = []
        while error is not None and len(chain) < 20:
            chain.append(error)
            error = error.__cause__ or error.__context__
        error = next((link for link in chain if self.raised and identity(link) == self.raised[0]), None)
        if error is None:
            return
        _, name, outer, light = self.raised
        frames = inject.traceback_frames(error.__traceback__)
        first = str(error).split("\n")[0]
        kind = type(error).__name__
        if layers.is_cuda_error(error) and not layers.BLOCKING and layers.on_gpu():
            if self.lost:
                return  # said when it waited
            # The device was fine when the outermost forward began.
            inject.report(f"the device failed in the forward of {outer}, at the latest in {name}, where it surfaced: "
                          f"{first}", layers.said(light or []), error_type=kind, module=outer)
        else:
            inject.report(f"{kind} was raised in module {name}: {first}", frames, error_type=kind, module=name)

    # --- backward

    def backward(self, run):
        def _engine_run_backward(t_outputs, *args, **kwargs):
            if self.found or self.lost or layers.capturing() or getattr(self.local, "deep", False):
                return run(t_outputs, *args, **kwargs)
            self.local.deep, handles = True, []
            light = layers.stack()
            try:
                if layers.on_gpu() and not layers.BLOCKING:
                    self.wait(None, light)
                handles = self.watch(t_outputs, light)
            except Exception as error:
                self.trouble(error)
            try:
                return run(t_outputs, *args, **kwargs)
            finally:
                self.local.deep = False
                for handle in handles:
                    handle.remove()
                try:
                    self.wait("this backward", light)
                except Exception as error:
                    self.trouble(error)

        return _engine_run_backward

    def watch(self, outputs, light):
        handles, seen = [], set()
        todo = [(t.grad_fn, None) for t in outputs if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        while todo:
            node, mark = todo.pop(0)
            if node in seen:
                continue
            seen.add(node)
            # A node without a mark was made inside the operation that its consumer belongs to.
            mark = node.metadata.get(MARK, mark)
            if "AccumulateGrad" not in node.name():
                handles.append(node.register_hook(self.hook(node.name(), mark, light)))
            todo.extend((into, mark) for into, _ in node.next_functions if into is not None)
        return handles

    def hook(self, name, mark, light):
        def hook(gradients, _):
            try:
                if self.found or self.lost or layers.capturing():
                    return
                for at, gradient in enumerate(gradients):
                    self.flags.add(gradient, lambda low, high, at=at: self.gradient(name, at, mark, low, high, light))
                if not layers.on_gpu() or layers.BLOCKING:
                    self.wait(f"the backward node {name}", light)
            except Exception as error:
                self.lose(error, f"this backward, at the latest in {name}", light)

        return hook

    def gradient(self, name, at, mark, low, high, light):
        if self.found or math.isfinite(low) and math.isfinite(high):
            return
        forward, module = mark or ([], None)
        where = f", of a forward call in {module}" if module else ""
        text = f"{name} is the first backward node whose gradient is not finite{where}: output {at}, from {low} to {high}"
        values = [f"gradient {at} of {name}: min {low}, max {high}"]
        # A gradient scaler makes infinities on purpose, and skips the step.
        note = layers.Scaling.used
        self.found = not note
        inject.report(text, layers.said(forward or light), values, module=module, note=note)
        if forward:
            inject.report(f"the backward call that ran {name}", layers.said(light), note=True)

    # --- optimizer

    def stepped(self, optimizer, args, kwargs):
        light = layers.stack()
        try:
            if self.lost or layers.capturing() or self.spoilt:
                return
            for group, settings in enumerate(optimizer.param_groups):
                for at, parameter in enumerate(settings["params"]):
                    name = f"parameter {at} of group {group}"
                    self.flags.add(parameter, lambda low, high, n=name: self.parameter(n, low, high, light))
            self.wait(None, light)
        except Exception as error:
            # Nothing had been waited for since the last forward or backward.
            self.lose(error, None, light)

    def parameter(self, name, low, high, light):
        if self.spoilt or math.isfinite(low) and math.isfinite(high):
            return
        self.spoilt = True
        inject.report(f"the optimizer step made {name} not finite: from {low} to {high}", layers.said(light),
                      [f"{name}: min {low}, max {high}"], note=self.found)
        self.found = True

    def trouble(self, error):
        """A hook of the tool failed: never into the program."""
        if layers.is_cuda_error(error):
            self.lost = True
        inject.report(f"isolate left a check out: {type(error).__name__}: {error}", note=True)


def identity(error):
    """Exceptions cannot be referred to weakly, and a kept one keeps the tensors of its frames."""
    return id(error), type(error), str(error)


class Marks(TorchFunctionMode):
    """Writes its Python line on each autograd node."""

    def __init__(self, isolate):
        super().__init__()
        self.isolate = isolate

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled() and not self.isolate.found:
            mark = None
            for tensor in tensors(result):
                node = tensor.grad_fn
                if node is not None and MARK not in node.metadata:
                    if mark is None:
                        stack = self.isolate.stack()
                        module = stack[-1][0]() if stack else None
                        mark = (layers.stack(), self.isolate.name(module) if module is not None else None)
                    node.metadata[MARK] = mark
        return result


def activate(torch):
    import torch.nn.modules.module as modules
    import torch.optim.optimizer as optimizers

    isolate = Isolate()
    layers.Scaling.watch()
    modules.register_module_forward_pre_hook(isolate.before)
    modules.register_module_forward_hook(isolate.after, always_call=True)
    optimizers.register_optimizer_step_post_hook(isolate.stepped)
    for place in (torch.autograd, torch.autograd.graph):
        if hasattr(place, "_engine_run_backward"):
            place._engine_run_backward = isolate.backward(place._engine_run_backward)
    Marks(isolate).__enter__()
    hook = sys.excepthook

    def excepthook(kind, error, traceback):
        try:
            isolate.ended(error)
        except Exception as trouble:
            isolate.trouble(trouble)
        hook(kind, error, traceback)

    sys.excepthook = excepthook
    return f"watches every module, backward and optimizer; {len(isolate.shapes)} shapes declared"
