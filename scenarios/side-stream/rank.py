"""Rank shop items: look up the next batch's item vectors while the current batch is scored."""
import zlib
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

ROWS, DIM, PER_BATCH, BATCHES = 9000, 64, 4096, 6
device = "cuda" if torch.cuda.is_available() else "cpu"
# The full tower is for the GPU; a laptop gets a small one.
WIDTH, DEPTH = (4096, 8) if device == "cuda" else (128, 2)


def slot(item):
    """The table's row for an item. Row 0 is kept for items that were never seen."""
    return 1 + zlib.crc32(item.encode()) % ROWS  # ROOT


def item_ids(batch):
    return [f"sku-{batch * PER_BATCH + i}" for i in range(PER_BATCH)]


class Prefetcher:
    """Looks item vectors up on a stream of its own."""

    def __init__(self, table):
        self.table = table
        self.stream = torch.cuda.Stream() if device == "cuda" else None
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())  # the table may still be in the making

    def start(self, items):
        ids = torch.tensor([slot(item) for item in items])
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            ids = ids.to(device)
            self.vectors = F.embedding(ids, self.table)  # FAULT

    def take(self):
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
        return self.vectors


def build_tower():
    layers = [nn.Linear(DIM, WIDTH, device=device), nn.ReLU()]
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH, device=device), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1, device=device))


@torch.no_grad()
def main():
    torch.manual_seed(0)
    tower = build_tower()
    prefetcher = Prefetcher(torch.randn(ROWS, DIM, device=device))
    prefetcher.start(item_ids(0))
    for batch in range(BATCHES):
        vectors = prefetcher.take()  # held until the batch is done: its memory belongs to the other stream
        scores = tower(vectors).squeeze(1)
        if batch + 1 < BATCHES:
            prefetcher.start(item_ids(batch + 1))  # CALLER
        best = scores.argmax().item()
        print(f"batch {batch}: best {item_ids(batch)[best]}", flush=True)


if __name__ == "__main__":
    main()  # CALLER
