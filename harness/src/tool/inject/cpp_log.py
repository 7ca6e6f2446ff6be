"""Reads c10's own log level back: TORCH_CPP_LOG_LEVEL has no other visible effect in most programs."""
import ctypes
import os

LEVELS = {-1: "VLOG", 0: "INFO", 1: "WARNING", 2: "ERROR", 3: "FATAL"}


def activate(torch):
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        # The same object that torch has loaded. Builds with glog keep the level elsewhere.
        level = ctypes.c_int.in_dll(ctypes.CDLL(path), "FLAGS_caffe2_log_level").value
    except (OSError, ValueError) as error:
        return f"c10's log level cannot be read: {error}"
    return f"c10's log level is {LEVELS.get(level, level)}"
