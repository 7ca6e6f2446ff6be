"""What the layered tools (guard, isolate, checkpoints) share: where the program is, and when it may be asked."""
import os
import sys

import faultlab_inject as inject
import torch

BLOCKING = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"


def on_gpu():
    """Does this process use the GPU? (False in a fork, where CUDA must not be touched.)"""
    return torch.cuda.is_initialized()


def capturing():
    """Is a CUDA graph being captured? Nothing may wait then."""
    return on_gpu() and torch.cuda.is_current_stream_capturing()


def is_cuda_error(error):
    """An error of the device, which may belong to an earlier launch than the one that got it. Out of memory is not."""
    if error is None or isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    text = str(error)
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in text or "_STATUS_" in text


def raised_by_program(traceback):
    """Did an explicit `raise` of the program's own files end it? Then its line is a check, not a fault."""
    import opcode

    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    at = traceback.tb_lasti
    return own(code.co_filename) and code.co_code[at] == opcode.opmap["RAISE_VARARGS"]


_root = []
_own = {}


def own(file):
    """Is it a file of the program's folder?"""
    known = _own.get(file)
    if known is None:
        if not _root:
            program = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv or [""])[0]
            _root.append(os.path.dirname(os.path.abspath(program)) + os.sep)
        path = os.path.abspath(file)
        known = _own[file] = (
            path.startswith(_root[0]) and "site-packages" not in path and not path.startswith(inject.HERE + os.sep)
        )
    return known


def stack(frame=None):
    """Light frames (file, line, function) of the caller, innermost first. Where there is no frame of the program's
    own, as on an autograd thread, those of the thread that waits in backward."""
    found, here = [], False
    frame = frame or sys._getframe(1)
    while frame is not None and len(found) < 100:
        code = frame.f_code
        here = here or own(code.co_filename)
        found.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    if here:
        return found
    for other in sys._current_frames().values():
        waiting, frame = False, other
        while frame is not None:
            waiting = waiting or frame.f_code.co_name == "_engine_run_backward"
            if waiting and own(frame.f_code.co_filename):
                return stack(frame)
            frame = frame.f_back
    return found


def said(light):
    """Light frames as a report has them."""
    return [
        {"file": file, "line": line, "function": function}
        for file, line, function in reversed(light)
        if os.path.dirname(os.path.abspath(file)) != inject.HERE
    ]


class Scaling:
    """Has a gradient scaler scaled a loss? It looks for infinite gradients itself, and skips such a step: then
    they are no fault."""

    used = False

    @classmethod
    def watch(cls):
        scaler = getattr(torch.amp, "GradScaler", None)
        if scaler is None:
            return
        scale = scaler.scale

        def scaled(self, *args, **kwargs):
            cls.used = cls.used or self.is_enabled()
            return scale(self, *args, **kwargs)

        scaler.scale = scaled


def plain(value):
    """A tensor with values of its own (no fake, meta, sparse, quantised or wrapped one)."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and value.device.type in ("cpu", "cuda")
        and not value.is_quantized
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


class Flags:
    """Is each tensor finite? Its extremes stay on the device until `read`, which waits once for all of them."""

    def __init__(self):
        self.waiting = []

    def add(self, tensor, what):
        if not plain(tensor) or tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            values = tensor.detach()
            if values.is_complex():
                values = torch.view_as_real(values.resolve_conj())
            if values.element_size() == 1:  # 8-bit floats have no aminmax
                values = values.half()
            low, high = torch.aminmax(values)  # both are NaN if any value is
            self.waiting.append((torch.stack((low, high)).double(), what))

    def read(self):
        """(what, lowest, highest) of each tensor, in order. May raise what an earlier launch did."""
        waiting, self.waiting = self.waiting, []
        values = [None] * len(waiting)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            by_device = {}
            for at, (extremes, _) in enumerate(waiting):
                by_device.setdefault(extremes.device, []).append(at)
            for device, places in by_device.items():
                if device.type == "cuda":
                    torch.cuda.synchronize(device)  # the flags may come from other streams
                for at, pair in zip(places, torch.stack([waiting[at][0] for at in places]).tolist()):
                    values[at] = pair
        return [(what, *pair) for (_, what), pair in zip(waiting, values)]
