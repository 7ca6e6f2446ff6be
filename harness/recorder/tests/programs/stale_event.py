"""An event that nobody recorded, in the place of one that was recorded and destroyed: to wait for it is to wait for nothing."""

import fakecuda as cuda

busy, faulty = cuda.Stream(), cuda.Stream()
old = cuda.Event()
cuda.launch("scale", stream=busy)
busy.synchronize()
cuda.launch("slow", microseconds=400_000, stream=busy)  # BUSY
old.record(busy)
handle = old.handle.value
old.destroy()
new = cuda.Event()
print("the same handle" if new.handle.value == handle else "another handle")
faulty.wait(new)
cuda.launch("fault_assert", stream=faulty)  # FAULT
faulty.synchronize()  # SURFACE
