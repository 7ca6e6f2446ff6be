"""A training loop that waits for a batch that never comes: the thread that was to fill it has died."""
import threading
import torch

ready = torch.zeros(256)


def load(batch):
    batch += torch.load("no-such-file.pt")
    ready.fill_(1)


def wait_for_batch():
    done = torch.ones(256)
    while not torch.equal(ready, done):
        pass


if __name__ == "__main__":
    threading.Thread(target=load, args=(torch.zeros(256),), daemon=True).start()
    wait_for_batch()
