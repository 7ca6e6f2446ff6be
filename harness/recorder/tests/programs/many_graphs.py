"""Graphs that come and go: an old handle means a new graph."""

import fakecuda as cuda

stream, word = cuda.Stream(), cuda.Memory(4)
word.fill(0, stream=stream)
cuda.launch("warm_up", stream=stream)
for step in range(40):
    with cuda.Graph(stream) as graph:
        cuda.launch("gather_fault_assert", word=word)
        if step == 30:
            word.fill(1)
            cuda.launch("gather_fault_assert", microseconds=500, word=word)  # FAULT
        cuda.launch("scatter")
    graph.replay()
    stream.synchronize()  # SURFACE
    graph.destroy()
