"""Leaves by os._exit with work in flight: no exit handler runs."""

import os
import sys

import fakecuda as cuda

cuda.launch("scale")
cuda.launch("fault_illegal", microseconds=1000)  # FAULT
if len(sys.argv) > 1:
    try:
        cuda.synchronize()  # SURFACE
    except cuda.Error:
        pass
os._exit(5)
