"""Copies one after the other: from the host, or from device to device."""

import sys

import fakecuda as cuda

COPIES = 12

a, b = cuda.Memory(64), cuda.Memory(64)
cuda.launch("scale", microseconds=20_000)
for _ in range(COPIES):
    if sys.argv[1] == "device":
        b.copy(a)
    else:
        b.write(b"12345678")
cuda.synchronize()
