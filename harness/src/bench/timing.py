"""Times a training step and prints what `faultlab bench` reads: one line of JSON."""
import argparse
import json
import resource
import time

import torch


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, required=True, help="iterations in a window")
    parser.add_argument("--windows", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    return args, device


def measure(program, step, args, device):
    """`step` is one iteration; nothing in it waits for the device."""
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(max(3, args.iters // 10)):
        loss = step()
    wait()
    windows = []
    for _ in range(args.windows):
        start = time.perf_counter()
        for _ in range(args.iters):
            loss = step()
        wait()
        windows.append((time.perf_counter() - start) / args.iters * 1e3)
    print(json.dumps({
        "faultlab_bench": 1,
        "program": program,
        "device": device,
        "iters": args.iters,
        "ms": windows,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "gpu_reserved_bytes": torch.cuda.max_memory_reserved() if device == "cuda" else None,
        "loss": loss.item(),
    }), flush=True)
