"""Lets another network namespace reach a port of this machine's loopback: door.py PID PORT. Says `open` when it does.

A socket stays in the namespace in which it was made, so one process can have its ears there and its hands here.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading

NEW_NET, SET_FLAGS, UP, RUNNING = 0x40000000, 0x8914, 0x1, 0x40  # CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP, IFF_RUNNING
pid, port = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace):
    if libc.setns(namespace, NEW_NET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def copy(source, sink):
    try:
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


here = os.open("/proc/self/ns/net", os.O_RDONLY)
enter(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
fcntl.ioctl(listener, SET_FLAGS, struct.pack("16sH14x", b"lo", UP | RUNNING))  # the loopback of a new one is down
listener.bind(("127.0.0.1", port))
listener.listen()
enter(here)
print("open", flush=True)
while True:
    inside, _ = listener.accept()
    outside = socket.create_connection(("127.0.0.1", port))
    for source, sink in ((inside, outside), (outside, inside)):
        threading.Thread(target=copy, args=(source, sink), daemon=True).start()
