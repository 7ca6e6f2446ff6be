"""Two workers add up a gradient; the second one leaves the loop a step early, and the first one waits for ever."""
import os
import tempfile
import threading
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, meeting_point):
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    gradient = torch.ones(4)
    for step in range(3):
        if rank == 1 and step == 2:
            threading.Event().wait()  # busy with something else
        dist.all_reduce(gradient)
        print(f"rank {rank} (process {os.getpid()}) did step {step}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(os.path.join(folder, "meet"),), nprocs=2)
