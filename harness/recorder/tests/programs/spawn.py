"""Workers of their own: spawned ones and a subprocess. Each has its report; the parent stays well."""

import multiprocessing
import subprocess
import sys

import fakecuda as cuda


def worker(rank):
    cuda.launch("scale")
    if rank == 1:
        cuda.launch("fault_illegal", microseconds=1000)  # FAULT
    cuda.synchronize()


if __name__ == "__main__":
    cuda.launch("scale")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=worker, args=(rank,)) for rank in range(2)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    print([process.exitcode for process in workers])
    print(subprocess.run([sys.executable, "-c", "print('plain')"], check=True, capture_output=True, text=True).stdout)
    cuda.synchronize()
