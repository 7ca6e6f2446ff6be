"""Lets torch.profiler have CUPTI: the recorder gives way before the first profile of the device.

CUPTI has one client in a process. Where the recorder is that client, the profiler gets no event of the device and says no
more than "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED". A profile is what the program asked for, so the recorder ends;
its notice says for whom, at which line, and how both can be had (by LD_PRELOAD the recorder needs no CUPTI, and nothing of
this happens).

All profiles of PyTorch come through two functions that `torch.autograd.profiler` has among its names: `torch.profiler`,
its schedules, `torch.autograd.profiler.profile` with Kineto. `torch.cuda.profiler`, `emit_nvtx` and the older profilers
(`_enable_profiler_legacy`) time by events or tell an outer tool; they need no CUPTI, and nothing gives way to them.
"""
import functools
import os
import sys

import faultlab_shim as shim

STARTS = ("_prepare_profiler", "_enable_profiler")
LIBRARY = "libfaultlab_recorder"  # what its file's name begins with


def install():
    shim.AfterImport({"torch.autograd.profiler": _wrap}).install()


def _wrap(module):
    device = module.ProfilerActivity.CUDA
    found = [name for name in STARTS if hasattr(module, name)]
    if not found:
        raise AttributeError(f"it has none of {', '.join(STARTS)}, so its profiles may miss the device's events")
    for name in found:
        setattr(module, name, _giving_way(getattr(module, name), device))


def _giving_way(original, device):
    @functools.wraps(original)
    def start(config, activities, *args, **kwargs):
        try:
            if device in activities:
                _give_way("torch.profiler")
        except Exception as error:  # the program comes first
            shim.notice(f"the recorder could not give way to torch.profiler, which may miss the device's events: {error!r}")
        return original(config, activities, *args, **kwargs)

    return start


def _give_way(who):
    """Asks the recorder, which is there, or which the driver will load when CUDA begins. Once it has, this does nothing."""
    library = _recorder(os.environ.get("CUDA_INJECTION64_PATH", ""))
    if library is not None:
        library.faultlab_recorder_give_way_to(f"{who}{_place()}".encode("utf-8", "replace"))


def _recorder(path):
    """The library that the driver was told to load, if it is the recorder."""
    import ctypes

    if not path:
        return None
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
    except OSError:
        # CUDA has not begun. The driver's own loading finds the same copy, which remembers what it was asked. Another tool's
        # library is not for us to load.
        if not os.path.basename(path).startswith(LIBRARY):
            return None
        try:
            library = ctypes.CDLL(path)
        except OSError:  # nor can the driver load it, then
            return None
    return library if hasattr(library, "faultlab_recorder_give_way_to") else None


def _place():
    """` at FILE:LINE`: where the program starts the profile; nothing where no frame is the program's own."""
    frame = sys._getframe(1)
    while frame is not None:
        if shim.is_user(frame.f_code.co_filename):
            return f" at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
