"""The error surfaces in a call that keeps the GIL, while another thread wants it and the main thread launches."""

import threading

import fakecuda as cuda

faulty, other = cuda.Stream(), cuda.Stream()
cuda.launch("scale", stream=faulty)
cuda.launch("fault_assert", microseconds=150_000, stream=faulty, hold_gil=True)  # FAULT


def work():
    cuda.init()
    try:
        while True:
            cuda.launch("vectorized_elementwise_kernel", microseconds=50, stream=other)
    except cuda.Error:
        pass


thread = threading.Thread(target=work)
thread.start()
try:
    faulty.synchronize(hold_gil=True)  # SURFACE
except cuda.Error as error:
    print(error.code)
thread.join()
