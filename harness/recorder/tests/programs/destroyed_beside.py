"""A stream is destroyed between two launches on another, where neither has a marker yet."""

import fakecuda as cuda

stream, other = cuda.Stream(), cuda.Stream()
cuda.launch("scale", stream=stream)
cuda.launch("scale", stream=other)
cuda.launch("vectorized_elementwise_kernel", stream=stream)
other.destroy()
cuda.launch("vectorized_elementwise_kernel_fault_illegal", microseconds=20000, stream=stream)  # FAULT
stream.synchronize()  # SURFACE
