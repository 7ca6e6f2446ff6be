"""Profiles some launches with torch.profiler, then faults. Arguments: `first` profiles before CUDA has begun; `cpu` profiles
the host alone."""

import sys

import fakecuda as cuda
from torch.profiler import ProfilerActivity, profile

activities = [ProfilerActivity.CPU] + ([] if "cpu" in sys.argv else [ProfilerActivity.CUDA])
if "first" not in sys.argv:
    cuda.launch("scale")
with profile(activities=activities) as measured:  # PROFILE
    for _ in range(3):
        cuda.launch("scale")
    cuda.synchronize()
print(measured.events)
with profile(activities=activities) as again:
    cuda.launch("scale")
    cuda.synchronize()
print(again.events)
sys.stdout.flush()
cuda.launch("gather_fault_assert")  # FAULT
cuda.synchronize()  # SURFACE
