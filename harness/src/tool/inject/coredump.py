"""Asks the driver itself, when the program ends, whether core dumps were on: the proof that the variables worked."""
import atexit
import ctypes
import os

import faultlab_inject

# CUcoredumpSettings of cuda.h (CUDA 12.1 and later)
ENABLE_ON_EXCEPTION, FILE = 1, 5


def ask(driver, attribute, value):
    size = ctypes.c_size_t(ctypes.sizeof(value))
    return driver.cuCoredumpGetAttributeGlobal(attribute, ctypes.byref(value), ctypes.byref(size))


def tell(torch, process):
    # A forked worker inherits this handler; what it has of CUDA is its parent's. A program that never used CUDA is
    # left alone, for a call of the driver's would be its first.
    if os.getpid() != process or not torch.cuda.is_initialized():
        return
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        on, name = ctypes.c_bool(False), ctypes.create_string_buffer(1024)
        code = ask(driver, ENABLE_ON_EXCEPTION, on)
        if code == 0:
            ask(driver, FILE, name)
            file = name.value.decode(errors="replace")
            message = f"driver: core dump on exception is {'on' if on.value else 'off'}"
            faultlab_inject.report(message, values=[f"file {file}"], note=True)
        else:
            faultlab_inject.report(f"driver: cuCoredumpGetAttributeGlobal returned {code}", note=True)
    except Exception as error:
        faultlab_inject.report(f"driver: could not be asked: {error}", note=True)


def activate(torch):
    atexit.register(tell, torch, os.getpid())
    return None
