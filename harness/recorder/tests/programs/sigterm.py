"""Ended by SIGTERM while it launches."""

import os
import signal
import threading
import time

import fakecuda as cuda


def work():
    cuda.init()
    while True:
        cuda.launch("scale", microseconds=10)


threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
