"""The process is aborted after a fault that no call has told, as when an exception leaves a destructor."""

import os
import time

import fakecuda as cuda

cuda.launch("scale")
cuda.launch("fault_illegal", microseconds=1000)  # FAULT
time.sleep(0.01)
os.abort()  # SURFACE
