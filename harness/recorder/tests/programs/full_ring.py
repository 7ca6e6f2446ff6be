"""As many launches as the argument says, then a fault: what a full ring costs."""

import sys
import time

import fakecuda as cuda

for _ in range(int(sys.argv[1])):
    cuda.launch("vectorized_elementwise_kernel")
cuda.synchronize()
cuda.launch("fault_assert", microseconds=50_000)  # FAULT
begin = time.monotonic()
try:
    cuda.synchronize()  # SURFACE
except cuda.Error:
    pass
print(f"{time.monotonic() - begin:.3f}")
