"""The launch after the one that faulted returns the error: its own, or that of the one before?"""

import time

import fakecuda as cuda

# So that its module is loaded: the error is to come from the launch.
cuda.launch("scale")  # BEFORE
cuda.synchronize()
cuda.launch("gather_fault_illegal", microseconds=20_000)  # FAULT
time.sleep(0.06)
cuda.launch("scale")  # NEXT
