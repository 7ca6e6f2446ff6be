"""Forked children after CUDA was used: plain ones, one that tries CUDA, one of multiprocessing. Then the parent faults."""

import multiprocessing
import os

import fakecuda as cuda


def square(number):
    return number * number


cuda.launch("scale")
cuda.synchronize()

child = os.fork()
if child == 0:
    os._exit(7)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

child = os.fork()
if child == 0:
    try:
        cuda.launch("scale")
    except cuda.Error as error:
        os._exit(error.code)
    os._exit(0)
print("cuda in a child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(square, range(5)))

cuda.launch("fault_assert", microseconds=5000)  # FAULT
child = os.fork()  # while the fault is in flight
if child == 0:
    raise SystemExit(0)  # with the exit handlers of Python, and those of C
os.waitpid(child, 0)
cuda.synchronize()  # SURFACE
