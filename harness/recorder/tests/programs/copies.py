"""Copies and fills only; FAKE_FAULT_AT says which of them faults."""

import fakecuda as cuda

a, b = cuda.Memory(64), cuda.Memory(64)
a.fill(1)  # FILL
b.copy(a)  # COPY
cuda.launch("scale")
b.write(b"12345678")  # WRITE
b.read()  # READ
