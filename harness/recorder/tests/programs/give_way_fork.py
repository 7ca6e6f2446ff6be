"""Asks the recorder to give way before CUDA begins; the child that it forks has CUDA, and no profiler."""

import ctypes
import os

import fakecuda as cuda

ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).faultlab_recorder_give_way_to(b"a tool")
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
cuda.launch("gather_fault_assert")  # FAULT
cuda.synchronize()  # SURFACE
