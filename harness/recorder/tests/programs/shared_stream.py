"""Threads that launch into the same stream at the same time."""

import threading

import fakecuda as cuda

stream = cuda.Stream()
begun = threading.Event()


def healthy():
    cuda.init()
    try:
        for _ in range(300):
            cuda.launch("scale", microseconds=20, stream=stream)
            begun.set()
    except cuda.Error:
        pass


threads = [threading.Thread(target=healthy) for _ in range(3)]
for thread in threads:
    thread.start()
begun.wait()
cuda.launch("fault_assert", microseconds=20, stream=stream)  # FAULT
for thread in threads:
    thread.join()
cuda.synchronize()  # SURFACE
