"""A graph whose second node faults once its word is set: captured here, replayed there."""

import sys

import fakecuda as cuda

stream, word = cuda.Stream(), cuda.Memory(4)
word.fill(0)
cuda.launch("warm_up")
cuda.synchronize()


def layer(name):
    cuda.launch(name, microseconds=500)


with cuda.Graph(stream) as graph:
    layer("first")
    layer("second")
    cuda.launch("third_fault_assert", microseconds=500, word=word)  # FAULT
    layer("fourth")
    word.copy(word)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
    graph.replay()
word.fill(1, stream=stream)
graph.replay()  # REPLAY
stream.synchronize()  # SURFACE
