"""Asks the driver itself whether core dumps are on (the proof that the variables worked), and lets a dump be finished.

The driver writes the dump while the program goes on. The error may surface a second before the file is there, or nowhere,
where nobody waits for the device any more: a process that ends meanwhile leaves none.
"""
import atexit
import ctypes
import os
import threading
import time

import faultlab_inject

# CUcoredumpSettings of cuda.h (CUDA 12.1 and later)
ENABLE_ON_EXCEPTION, FILE = 1, 5
# Seconds at the end of the program: for work that nobody waited for, and for the dump after a fault.
DEVICE_S, DUMP_S = 10, 30
# Errors of the host or of a context that is gone; all others that a synchronisation returns are faults on the device.
HARMLESS = {0, 1, 3, 4, 100, 101, 201, 709}


def ask(driver, attribute, value):
    size = ctypes.c_size_t(ctypes.sizeof(value))
    return driver.cuCoredumpGetAttributeGlobal(attribute, ctypes.byref(value), ctypes.byref(size))


class Dump:
    def __init__(self, torch):
        self.torch, self.process, self.file = torch, os.getpid(), None

    def tell(self):
        """Once, and early: a program may end without its exit handlers."""
        if self.file is not None or os.getpid() != self.process:
            return
        self.file = ""
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            on, name = ctypes.c_bool(False), ctypes.create_string_buffer(1024)
            code = ask(driver, ENABLE_ON_EXCEPTION, on)
            if code == 0:
                ask(driver, FILE, name)
                file = name.value.decode(errors="replace")
                self.file = file if on.value else ""
                message = f"driver: core dump on exception is {'on' if on.value else 'off'}"
                faultlab_inject.report(message, values=[f"file {file}"], note=True)
            else:
                faultlab_inject.report(f"driver: cuCoredumpGetAttributeGlobal returned {code}", note=True)
        except Exception as error:
            faultlab_inject.report(f"driver: could not be asked: {error}", note=True)

    def end(self):
        # A forked worker inherits this handler; what it has of CUDA is its parent's. A program that never used CUDA is
        # left alone, for a call of the driver's would be its first.
        if os.getpid() != self.process or not self.torch.cuda.is_initialized():
            return
        self.tell()
        if not self.file:
            return
        try:
            if self.faulted():
                self.wait()
        except Exception as error:
            faultlab_inject.report(f"driver: could not be waited for: {error}", note=True)

    def faulted(self):
        """Waits for the devices, as far as they come to an end, and tells whether a context is dead."""
        codes = []
        thread = threading.Thread(target=synchronise, args=(codes,), daemon=True)
        thread.start()
        thread.join(DEVICE_S)
        return any(code not in HARMLESS for code in codes)

    def wait(self):
        """Until the file is whole: there, closed by this process, and not growing."""
        deadline, before = time.monotonic() + DUMP_S, None
        while time.monotonic() < deadline:
            now = size_of_closed(self.file)
            if now and now == before:
                return
            before = now
            time.sleep(0.2)
        # Seen where two processes faulted on one GPU at the same time.
        faultlab_inject.report(f"driver: no core dump was finished within {DUMP_S} s of the fault", note=True)


def synchronise(codes):
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    for device in range(count.value):
        flags, active, context = ctypes.c_uint(0), ctypes.c_int(0), ctypes.c_void_p()
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
        if not active.value or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0:
            continue
        # Never released: a context that died may not be, and the process ends.
        if driver.cuCtxSetCurrent(context) == 0:
            codes.append(driver.cuCtxSynchronize())


def size_of_closed(path):
    try:
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                if os.path.samefile(f"/proc/self/fd/{descriptor}", path):
                    return None
            except OSError:
                pass
        return os.stat(path).st_size
    except OSError:
        return None


def activate(torch):
    dump = Dump(torch)
    atexit.register(dump.end)
    try:
        # Called when CUDA is initialised.
        torch.cuda._lazy_call(dump.tell)
    except AttributeError:
        pass
    return None
