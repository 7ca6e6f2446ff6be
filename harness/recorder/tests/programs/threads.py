"""Four threads with a stream each; one launches what faults."""

import threading

import fakecuda as cuda

started = threading.Barrier(4)


def work(number):
    cuda.init()
    stream = cuda.Stream()
    started.wait()
    for i in range(50):
        if number == 2 and i == 40:
            cuda.launch("fault_assert", microseconds=300, stream=stream)  # FAULT
        else:
            cuda.launch("vectorized_elementwise_kernel", microseconds=300, stream=stream)
    stream.synchronize()


def guarded(number):
    try:
        work(number)
    except cuda.Error:
        pass


threads = [threading.Thread(target=guarded, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
