"""A program that never uses CUDA, though the library lies there."""

import ctypes
import multiprocessing

if __name__ == "__main__":
    ctypes.CDLL("libcuda.so.1")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, [-1, 2]))
