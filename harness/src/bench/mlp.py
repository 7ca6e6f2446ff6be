"""Launch-bound: 20 small layers on a small batch, so that the host decides how fast it goes."""
import torch
from torch import nn

import timing

args, device = timing.arguments()
WIDTH, LAYERS, BATCH, CLASSES = 128, 20, 32, 10

layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(device)
inputs = torch.randn(BATCH, WIDTH, device=device)
labels = torch.randint(0, CLASSES, (BATCH,), device=device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


timing.measure("mlp", step, args, device)
