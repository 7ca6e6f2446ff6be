"""A fault among element-wise kernels, which share a marker: the line is among the candidates."""

import fakecuda as cuda

cuda.launch("scale")
for _ in range(40):
    cuda.launch("vectorized_elementwise_kernel_a", microseconds=300)
cuda.launch("vectorized_elementwise_kernel_fault_illegal", microseconds=300)  # FAULT
for _ in range(40):
    cuda.launch("vectorized_elementwise_kernel_b", microseconds=300)
cuda.synchronize()  # SURFACE
