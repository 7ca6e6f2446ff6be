"""Another client wants CUPTI later, and asks the recorder to give way, as faultlab's hook for profilers does."""

import ctypes
import os

import fakecuda as cuda

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p)
seen = []
callback = CALLBACK(lambda _data, _domain, id, _call: seen.append(id))
cuda.launch("scale")
recorder = os.environ.get("CUDA_INJECTION64_PATH")
if recorder:
    ctypes.CDLL(recorder).faultlab_recorder_give_way()
cupti, subscriber = ctypes.CDLL("libcupti.so.13"), ctypes.c_void_p()
print(cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None))
assert cupti.cuptiEnableCallback(1, subscriber, 1, 307) == 0
cuda.launch("scale")
cuda.synchronize()
print(len(seen), set(seen))
