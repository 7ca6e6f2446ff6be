"""Streams that come and go: the driver gives an old handle to a new stream."""

import fakecuda as cuda

for step in range(600):
    stream = cuda.Stream()
    for _ in range(3):
        cuda.launch("scale", stream=stream)
    if step == 550:
        cuda.launch("fault_assert", microseconds=500, stream=stream)  # FAULT
    stream.synchronize()  # SURFACE
    stream.destroy()
