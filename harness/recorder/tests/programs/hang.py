"""A kernel that never ends, and a host that waits for it."""

import fakecuda as cuda

healthy, stuck = cuda.Stream(), cuda.Stream()
cuda.launch("scale", stream=healthy)
cuda.launch("scale", stream=stuck)
cuda.launch("spin_for_ever", stream=stuck)  # FAULT
cuda.launch("scale", stream=stuck)
print("waiting", flush=True)
stuck.synchronize()  # SURFACE
