"""The launch is at the bottom of a deep recursion."""

import sys

import fakecuda as cuda

sys.setrecursionlimit(20_000)


def down(levels):
    if levels:
        down(levels - 1)
    else:
        cuda.launch("fault_assert", microseconds=1000)  # FAULT


cuda.launch("scale")
down(5_000)
cuda.synchronize()  # SURFACE
