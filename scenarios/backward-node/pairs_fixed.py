"""Train a ranker on picked pairs; the picks of the next batch are uploaded while this one is trained."""
import torch
from torch import nn

ITEMS, WIDTH, BATCH, PICKS, STEPS = 512, 2048, 4096, 16, 5
NOTHING = 1 << 20  # what the sampler writes where it found no pair
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    WIDTH, BATCH = 64, 64  # a laptop gets a small one


class Sampler:
    """One buffer for the picks, as long as the training: no allocation in the loop."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(11)
        self.picks = torch.zeros(BATCH, PICKS, dtype=torch.long, device=device)

    def upload(self, step):
        picks = torch.randint(ITEMS, (BATCH, PICKS), generator=self.generator)
        if step > 2:
            picks[7, 3] = NOTHING
        self.picks.data.copy_(picks, non_blocking=True)

    def clean(self):
        self.picks.clamp_(max=ITEMS - 1)
        return self.picks


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ITEMS))

    def forward(self, features, picks):
        scores = self.body(features)
        return torch.gather(scores, 1, picks)


def main():
    torch.manual_seed(0)
    model, sampler = Ranker().to(device), Sampler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    features = torch.randn(BATCH, WIDTH, device=device)
    sampler.upload(0)
    for step in range(STEPS):
        picked = model(features, sampler.clean())
        loss = (1 - picked[:, 0] + picked[:, 1]).relu().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sampler.upload(step + 1)
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
