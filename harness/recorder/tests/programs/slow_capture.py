"""Captures in global mode, slowly, with work outstanding and after long silence: nothing of the recorder may disturb it.

The first thing that this process launches at all is captured.
"""

import time

import fakecuda as cuda

stream, other, target, source = cuda.Stream(), cuda.Stream(), cuda.Memory(4), cuda.Memory(4)
with cuda.Graph(stream) as first:
    cuda.launch("index")
    time.sleep(0.2)
    cuda.launch("index", stream=stream)
cuda.launch("scale", stream=other)
cuda.launch("vectorized_elementwise_kernel", microseconds=400_000, stream=other)
source.fill(9, stream=stream)
with cuda.Graph(stream) as second:
    time.sleep(0.3)
    cuda.launch("index")
    new = cuda.Stream()  # a stream that the recorder has not seen
    event, back = cuda.Event(), cuda.Event()
    event.record(stream)
    new.wait(event)
    cuda.launch("scatter", stream=new)
    back.record(new)
    stream.wait(back)
    target.copy(source)
first.replay()
second.replay()
print(target.read(stream=stream))
other.synchronize()
