"""The fault surfaces thousands of launches later, on a stream that is not the one that waits."""

import fakecuda as cuda

gate = cuda.Memory(4)
gate.fill(0)
cuda.synchronize()
faulty, other = cuda.Stream(), cuda.Stream()
cuda.launch("spin", word=gate, stream=faulty)
cuda.launch("fault_illegal", microseconds=100_000, stream=faulty)  # FAULT
for _ in range(500):
    cuda.launch("scale", stream=faulty)
for _ in range(4000):
    cuda.launch("scale", stream=other)
gate.fill(1, stream=other)
faulty.synchronize()  # SURFACE
