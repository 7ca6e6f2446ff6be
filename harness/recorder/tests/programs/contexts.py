"""Two contexts of one device: one dies and is destroyed, a new one comes and goes, the first one is well to the end."""

import ctypes

import fakecuda as cuda

cuda.launch("scale")
zero = cuda.Memory(4)
for name in ("fault_illegal", "scale"):
    context = ctypes.c_void_p()
    cuda.driver("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    cuda.launch("scale")
    cuda.launch(name, microseconds=1000)  # FAULT
    try:
        cuda.synchronize()  # SURFACE
        print("well")
    except cuda.Error as error:
        print(error.code)
    try:
        cuda.driver("cuCtxDestroy_v2", context)
    except cuda.Error as error:
        print(error.code)
zero.fill(3)
cuda.launch("scale")
print(zero.read())
