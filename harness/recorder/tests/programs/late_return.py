"""The GPU is quicker than the launch call: another thread sees the error before the call has returned.

With an argument it is the first launch of the process.
"""

import sys
import threading

import fakecuda as cuda

stream, other = cuda.Stream(), cuda.Stream()
if len(sys.argv) == 1:
    cuda.launch("scale", stream=stream)
    cuda.launch("scale", stream=other)
    cuda.synchronize()


def poll():
    cuda.init()
    try:
        while True:
            other.synchronize()  # SURFACE
    except cuda.Error:
        pass


thread = threading.Thread(target=poll)
thread.start()
cuda.launch("fault_illegal", microseconds=1000, stream=stream)  # FAULT
thread.join()
