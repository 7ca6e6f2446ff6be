"""Two devices: the second one's context dies, the first goes on."""

import fakecuda as cuda

cuda.launch("scale")
zero = cuda.Memory(4)
cuda.set_device(1)
cuda.launch("scale")
cuda.launch("fault_illegal", microseconds=1000)  # FAULT
try:
    cuda.synchronize()  # SURFACE
except cuda.Error as error:
    print(error.code)
cuda.set_device(0)
zero.fill(3)
print(zero.read())
