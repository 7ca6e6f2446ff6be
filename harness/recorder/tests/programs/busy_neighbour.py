"""Two streams in flight: one faults while a kernel of the other has merely not finished."""

import time

import fakecuda as cuda

slow, quick = cuda.Stream(), cuda.Stream()
cuda.launch("busy", microseconds=300_000, stream=slow)  # CANDIDATE
time.sleep(0.02)
cuda.launch("scale", stream=quick)
cuda.launch("fault_illegal", microseconds=1000, stream=quick)  # FAULT
quick.synchronize()  # SURFACE
