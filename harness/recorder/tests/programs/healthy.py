"""Threads, streams, graphs, events, copies, workers: all well, unless FAKE_FAULT_AT says otherwise.

The values that it prints tell whether the GPU did everything in order.
"""

import multiprocessing
import os
import subprocess
import sys
import threading

import fakecuda as cuda

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
results = {}


def total(number):
    return sum(range(number))


def train(number):
    cuda.init()
    stream, event = cuda.Stream(), cuda.Event()
    a, b = cuda.Memory(32), cuda.Memory(32)
    for step in range(ROUNDS):
        a.fill(step + number, stream=stream)
        cuda.launch("vectorized_elementwise_kernel_add", microseconds=20, stream=stream)
        for _ in range(5):
            cuda.launch("vectorized_elementwise_kernel_mul", stream=stream)
        cuda.launch("gather", microseconds=30, stream=stream, via="ex")
        b.copy(a, stream=stream)
        event.record(stream)
        cuda.launch("embedding_forward", stream=stream, via="library")
        if step % 2:
            event.synchronize()
    results[number] = b.read(stream=stream)[0]
    stream.destroy()


def replays():
    cuda.init()
    stream, target = cuda.Stream(), cuda.Memory(8)
    fill, copies = cuda.Memory(8), []
    for step in range(ROUNDS):
        fill.fill(100 + step, stream=stream)
        with cuda.Graph(stream, mode=cuda.THREAD_LOCAL) as graph:
            cuda.launch("index_select")
            target.copy(fill)
            for _ in range(4):
                cuda.launch("vectorized_elementwise_kernel")
            cuda.launch("scatter", microseconds=10)
        for _ in range(4):
            graph.replay()
        copies.append(target.read(stream=stream)[0])
        graph.destroy()
    results["graph"] = copies


def guarded(function, *arguments):
    try:
        function(*arguments)
    except cuda.Error:
        results["failed"] = True


def main():
    jobs = [(train, n) for n in range(3)] + [(replays,)]
    threads = [threading.Thread(target=guarded, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    child = os.fork()  # as DataLoader workers are made, while other threads launch
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    for thread in threads:
        thread.join()
    if len(sys.argv) > 2:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(total, [10, 100, 1000]))
        print(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True).stdout)
    cuda.synchronize()
    print(sorted(results.items(), key=str))


try:
    main()
except cuda.Error:
    print("failed")
