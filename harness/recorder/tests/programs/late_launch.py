"""A launch that comes into its stream only after the wait of another thread began: that wait says nothing about it."""

import threading
import time

import fakecuda as cuda

busy, late = cuda.Stream(), cuda.Stream()  # the fake waits for the last one made first
cuda.launch("scale", microseconds=600_000, stream=busy)


def work():
    cuda.launch("gather_fault_illegal", microseconds=900_000, stream=late)  # FAULT


thread = threading.Thread(target=work)
thread.start()
time.sleep(0.05)
cuda.synchronize()
thread.join()
late.synchronize()  # SURFACE
