"""Learn an embedding in which two recordings of one speaker lie close together."""
import math

import torch
from torch import nn

FEATURES, DIM, BATCH, MARGIN = 40, 16, 32, 1.0
device = "cuda" if torch.cuda.is_available() else "cpu"


def load_pairs(batches):
    """Pairs of recordings, and 1 where both are of the same speaker."""
    generator = torch.Generator().manual_seed(3)
    left = torch.randn(batches * BATCH, FEATURES, generator=generator)
    same = torch.randint(2, (batches * BATCH,), generator=generator).float()
    noise = torch.randn(batches * BATCH, FEATURES, generator=generator)
    right = torch.where(same[:, None] == 1, left + 0.1 * noise, noise)
    right[100], same[100] = left[100], 1.0  # the corpus lists this recording twice
    return zip(left.split(BATCH), right.split(BATCH), same.split(BATCH))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, DIM))

    def forward(self, recordings):
        return self.layers(recordings)


def distance(a, b):
    return (a - b).pow(2).sum(dim=1).sqrt()  # ROOT


def contrastive_loss(encoder, left, right, same):
    gap = distance(encoder(left), encoder(right))
    pull = same * gap.pow(2)
    push = (1 - same) * (MARGIN - gap).clamp(min=0).pow(2)
    return (pull + push).mean()


def train(encoder, optimizer, pairs):
    for step, (left, right, same) in enumerate(pairs):
        loss = contrastive_loss(encoder, left.to(device), right.to(device), same.to(device))
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss is {loss.item()} at step {step}")
        optimizer.zero_grad()
        loss.backward()  # FAULT
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    torch.manual_seed(0)
    encoder = Encoder().to(device)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    train(encoder, optimizer, load_pairs(batches=8))  # CALLER


if __name__ == "__main__":
    main()  # CALLER
