"""A server with a new thread for each request, some with a stream of its own: all are long gone when one faults."""

import sys
import threading

import fakecuda as cuda

cuda.init()
REQUESTS, AT_ONCE = int(sys.argv[1]), 4
FAULTY = int(sys.argv[2]) if len(sys.argv) > 2 else None


def request(number):
    stream = cuda.Stream() if number % 2 else None
    for _ in range(3):
        cuda.launch("vectorized_elementwise_kernel", stream=stream)
    cuda.launch("scale", stream=stream)
    if number == FAULTY:
        cuda.launch("fault_assert", microseconds=500, stream=stream)  # FAULT
        cuda.launch("scale", stream=stream)
    if stream:
        # What it launched may still be running.
        stream.destroy()


for first in range(0, REQUESTS, AT_ONCE):
    numbers = range(first, first + AT_ONCE)
    if FAULTY in numbers:
        # Alone, so that nothing else can be running.
        numbers = [FAULTY]
        cuda.synchronize()
    threads = [threading.Thread(target=request, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if first % 100 == 0 or numbers == [FAULTY]:
        cuda.synchronize()
cuda.synchronize()
