"""CUDA is asked whether it is there, and that is all."""

import fakecuda as cuda

cuda.init()
print("done")
