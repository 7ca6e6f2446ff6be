"""The driver takes its time with a launch, as where a module must be loaded or compiled first; the device is idle."""

import fakecuda as cuda

cuda.launch("scale")
cuda.synchronize()
cuda.launch("gather")
cuda.synchronize()
