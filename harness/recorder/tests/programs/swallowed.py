"""An except clause takes the error, and the program ends well."""

import fakecuda as cuda

cuda.launch("scale")
cuda.launch("fault_misaligned", microseconds=1000)  # FAULT
try:
    cuda.synchronize()  # SURFACE
except RuntimeError:
    pass
print("done")
