"""GPU-bound: a 12-layer language model in bf16 autocast. On the CPU it is a toy that only shows that all works."""
import torch
from torch import nn

import timing

args, device = timing.arguments()
if device == "cuda":
    WIDTH, LAYERS, HEADS, LENGTH, BATCH, WORDS = 1024, 12, 16, 512, 16, 32000
else:
    WIDTH, LAYERS, HEADS, LENGTH, BATCH, WORDS = 64, 2, 4, 32, 4, 500


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.out(hidden)


with torch.device(device):
    model = Model()
tokens = torch.randint(0, WORDS, (BATCH, LENGTH), device=device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = criterion(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


timing.measure("transformer", step, args, device)
