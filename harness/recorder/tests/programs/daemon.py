"""A daemon thread goes on launching while the interpreter leaves."""

import threading
import time

import fakecuda as cuda


def work():
    cuda.init()
    while True:
        cuda.launch("scale", microseconds=10)


threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
print("done")
