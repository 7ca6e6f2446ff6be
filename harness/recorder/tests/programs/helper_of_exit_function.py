"""See exit_function.py."""

import fakecuda as cuda


def step():
    cuda.launch("scale", microseconds=1000)
    cuda.launch("fault_illegal", microseconds=200_000)  # FAULT
    cuda.launch("scale")
