"""sys.exit in a thread, which ends the thread only."""

import sys
import threading

import fakecuda as cuda


def work():
    cuda.init()
    cuda.launch("fault_assert", microseconds=2000)  # FAULT
    sys.exit(3)


thread = threading.Thread(target=work)
thread.start()
thread.join()
cuda.synchronize()  # SURFACE
