"""Sees whether c10 was built with device-side assertions. No module of torch says so, its library does."""
import mmap
import os

# Only a build with TORCH_USE_CUDA_DSA has the first text, only one without it has the second.
WITH, WITHOUT = b"Looking for device-side assertion failure information", b"Compile with `TORCH_USE_CUDA_DSA`"


def activate(torch):
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10_cuda.so")
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            if library.find(WITH) >= 0:
                return "device-side assertions are compiled in"
            if library.find(WITHOUT) >= 0:
                return "device-side assertions are not compiled in: c10's text is 'Compile with `TORCH_USE_CUDA_DSA`'"
            return "device-side assertions are not compiled in: libc10_cuda.so has no such text"
    except (OSError, ValueError):
        return "device-side assertions are not compiled in: there is no libc10_cuda.so"
