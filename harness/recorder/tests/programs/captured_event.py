"""Two streams that wait for each other in a graph only: outside it they are independent, and the one that is busy innocent."""

import fakecuda as cuda

busy, faulty, fork, join = cuda.Stream(), cuda.Stream(), cuda.Event(), cuda.Event()
cuda.launch("scale", stream=faulty)
faulty.synchronize()
cuda.launch("slow", microseconds=400_000, stream=busy)  # BUSY
fork.record(busy)
with cuda.Graph(busy):
    cuda.launch("trunk")
    fork.record(busy)
    faulty.wait(fork)
    cuda.launch("branch", stream=faulty)
    join.record(faulty)
    busy.wait(join)
cuda.launch("fault_assert", stream=faulty)  # FAULT
faulty.synchronize()  # SURFACE
