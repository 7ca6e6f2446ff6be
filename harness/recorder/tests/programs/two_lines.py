"""One kernel, launched from two lines: the second gets the bad value. Everything is asynchronous until the end."""

import fakecuda as cuda

good, bad = cuda.Memory(4), cuda.Memory(4)
good.fill(0)
bad.fill(1)
for _ in range(20):
    cuda.launch("gather_fault_assert", microseconds=200, word=good)
cuda.launch("gather_fault_assert", microseconds=200, word=bad)  # FAULT
for _ in range(20):
    cuda.launch("gather_fault_assert", microseconds=200, word=good)
cuda.synchronize()  # SURFACE
