"""A graph of thousands of kernels, captured from one stream."""

import fakecuda as cuda

stream, target = cuda.Stream(), cuda.Memory(4)
cuda.launch("warm_up", stream=stream)
with cuda.Graph(stream) as graph:
    for _ in range(3000):
        cuda.launch("gather")
    target.fill(7)
graph.replay()
print(target.read(stream=stream))
