"""Another client has CUPTI before CUDA begins."""

import ctypes

import fakecuda as cuda

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p)
seen = []
callback = CALLBACK(lambda _data, _domain, id, _call: seen.append(id))
cupti, subscriber = ctypes.CDLL("libcupti.so.13"), ctypes.c_void_p()
assert cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None) == 0
assert cupti.cuptiEnableCallback(1, subscriber, 1, 307) == 0
cuda.launch("scale")
cuda.synchronize()
print(len(seen), set(seen))
