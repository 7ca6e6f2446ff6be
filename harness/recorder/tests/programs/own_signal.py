"""A program that uses the recorder's signal for itself."""

import os
import signal

import fakecuda as cuda

signal.signal(signal.SIGUSR2, lambda number, frame: print("own handler"))
cuda.launch("scale")
cuda.synchronize()
os.kill(os.getpid(), signal.SIGUSR2)
print("done")
