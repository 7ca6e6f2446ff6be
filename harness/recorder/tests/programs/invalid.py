"""Errors of the host: a block that is too large, a destroyed stream, a query that is not ready. Nothing faults."""

import fakecuda as cuda

for block in ((2048, 1, 1), (0, 1, 1)):
    try:
        cuda.launch("scale", block=block)
    except cuda.Error as error:
        print(error.code)
stream = cuda.Stream()
cuda.launch("scale", microseconds=20_000, stream=stream)
print(stream.query())
stream.synchronize()
print(stream.query())
stream.destroy()
try:
    cuda.launch("scale", stream=stream)
except cuda.Error as error:
    print(error.code)
cuda.synchronize()
