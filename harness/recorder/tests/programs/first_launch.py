"""The very first launch of the process faults."""

import fakecuda as cuda

cuda.launch("fault_assert", microseconds=1000)  # FAULT
cuda.synchronize()  # SURFACE
