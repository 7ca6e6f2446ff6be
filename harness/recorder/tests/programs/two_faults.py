"""A fault on each of two streams, both in flight: the one that comes first kills the other."""

import fakecuda as cuda

first, second = cuda.Stream(), cuda.Stream()
cuda.launch("scale", stream=first)
cuda.launch("fault_illegal", microseconds=200_000, stream=second)  # CANDIDATE
cuda.launch("fault_illegal", microseconds=20_000, stream=first)  # FAULT
cuda.synchronize()  # SURFACE
