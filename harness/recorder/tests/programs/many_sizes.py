"""A training loop that nobody waits for: the same kernel in many sizes from one line, and in one of them from another."""

import fakecuda as cuda

bad = cuda.Memory(4)
bad.fill(1)
for size in range(1, 201):
    for _ in range(10):
        cuda.launch("gather", grid=(size, 1, 1))
cuda.launch("gather", microseconds=100_000)
cuda.launch("gather_fault_assert", word=bad, grid=(150, 2, 1))  # FAULT
cuda.launch("gather_fault_assert", word=bad, grid=(150, 1, 1))
cuda.synchronize()  # SURFACE
