"""A program that goes on for thousands of calls after the fault, in two threads, none of which succeeds."""

import threading

import fakecuda as cuda

stream = cuda.Stream()
cuda.launch("scale", stream=stream)
cuda.launch("fault_illegal", microseconds=1000, stream=stream)  # FAULT


def work():
    failed = 0
    cuda.init()
    for _ in range(1500):
        for call in (stream.synchronize, cuda.synchronize, lambda: cuda.launch("scale", stream=stream), cuda.Stream):
            try:
                call()  # SURFACE
            except cuda.Error:
                failed += 1
    print(failed)


threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
