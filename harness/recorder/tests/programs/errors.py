"""Every kind of error: the kernel is named by the argument, the entry point by the second one."""

import sys

import fakecuda as cuda

stream = cuda.Stream() if "ptsz" not in sys.argv else None
for _ in range(3):
    cuda.launch("scale", microseconds=100, stream=stream)
cuda.launch(sys.argv[1], microseconds=100, stream=stream, via=sys.argv[2] if len(sys.argv) > 2 else "")  # FAULT
cuda.launch("scale", stream=stream)
cuda.synchronize()  # SURFACE
