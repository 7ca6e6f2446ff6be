"""Captures that the program itself spoils, and good ones after them."""

import fakecuda as cuda

stream, target = cuda.Stream(), cuda.Memory(4)
for _ in range(3):
    try:
        with cuda.Graph(stream):
            cuda.launch("index")
            cuda.synchronize()  # not allowed
    except cuda.Error as error:
        print(error.code)
side, fork = cuda.Stream(), cuda.Event()
try:
    with cuda.Graph(stream):
        cuda.launch("index")
        fork.record(stream)
        side.wait(fork)
        cuda.launch("index", stream=side)  # never joined
except cuda.Error as error:
    print(error.code)
with cuda.Graph(stream) as graph:
    target.fill(5)
    cuda.launch("index")
graph.replay()
print(target.read(stream=stream))
for _ in range(20):  # that nothing is captured any more shows in the markers
    cuda.launch("vectorized_elementwise_kernel", stream=stream)
    stream.synchronize()
