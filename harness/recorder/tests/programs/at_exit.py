"""Nothing ever waits for the GPU: the fault comes when the interpreter has left."""

import fakecuda as cuda

cuda.launch("scale", microseconds=20_000)
cuda.launch("fault_assert", microseconds=20_000)  # FAULT
cuda.launch("scale")
print("done")
