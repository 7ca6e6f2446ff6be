"""Serve requests with a decode step that was captured in a CUDA graph."""
import sys

import torch

SLOTS, WIDTH, ROWS = 1024, 2048, 64
FREED = 1 << 20  # what the scheduler writes into the place of a request that has ended


class Decoder:
    """A batch always has ROWS rows, as the graph has; the rows that no request needs are padding."""

    def __init__(self):
        self.cache = torch.randn(SLOTS, WIDTH, device="cuda")
        self.weight = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5
        self.slots = torch.zeros(ROWS, dtype=torch.long, device="cuda")
        self.capture()

    def step(self):
        hidden = self.cache.index_select(0, self.slots)
        for _ in range(16):
            hidden = torch.tanh(hidden @ self.weight)
        return hidden.mean(dim=1)

    def capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.step()

    def decode(self, slots):
        self.slots[: len(slots)] = slots
        self.graph.replay()
        return self.out[: len(slots)]

    def release(self, first):
        self.slots[first:] = 0


def main():
    if not torch.cuda.is_available():
        sys.exit("decode.py needs a CUDA device: there are no CUDA graphs without one")
    torch.manual_seed(0)
    decoder = Decoder()
    for step, requests in enumerate([64, 64, 48, 48]):
        if step == 2:
            decoder.release(requests)
        slots = torch.randint(SLOTS, (requests,), device="cuda")
        scores = decoder.decode(slots)
        print(f"step {step}: {requests} requests, mean {scores.mean().item():+.5f}", flush=True)


if __name__ == "__main__":
    main()
