"""A stream that waits for the faulty one has not begun: it is innocent."""

import sys

import fakecuda as cuda

producer, consumer, ready = cuda.Stream(), cuda.Stream(), cuda.Event()
cuda.launch("scale", stream=producer)
if "first" not in sys.argv:
    cuda.launch("scale", stream=consumer)
cuda.launch("fault_illegal", microseconds=20_000, stream=producer)  # FAULT
ready.record(producer)
consumer.wait(ready)
cuda.launch("gather", stream=consumer)
consumer.synchronize()  # SURFACE
