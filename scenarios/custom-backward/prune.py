"""Train with a pruned layer: its own autograd function sends the gradient only to the rows that were kept."""
import torch
from torch import nn

WIDTH, KEPT, BATCH, STEPS = 2048, 512, 4096, 5
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    WIDTH, KEPT, BATCH = 64, 16, 32  # a laptop gets a small one


class KeepRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, rows):
        ctx.save_for_backward(rows)
        ctx.kept = len(rows)
        return weight.index_select(0, rows)

    @staticmethod
    def backward(ctx, grad):
        (rows,) = ctx.saved_tensors
        full = grad.new_zeros(ctx.kept, grad.shape[1])  # ROOT
        full.index_add_(0, rows, grad)  # FAULT
        return nn.functional.pad(full, (0, 0, 0, WIDTH - len(full))), None


class Pruned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.head = nn.Linear(KEPT, 1)

    def forward(self, x, rows):
        return self.head(torch.relu(x @ KeepRows.apply(self.weight, rows).T))


def rows_of(step):
    """The rows that are kept: the first ones at the start, the best ones once they are known."""
    rows = torch.arange(KEPT) if step < 2 else torch.randperm(WIDTH)[:KEPT].sort().values
    return rows.to(device)


def main():
    torch.manual_seed(0)
    model = Pruned().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(BATCH, WIDTH, device=device), torch.randn(BATCH, 1, device=device)
    for step in range(STEPS):
        loss = nn.functional.mse_loss(model(inputs, rows_of(step)), targets)
        optimizer.zero_grad()
        loss.backward()  # CALLER
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()  # CALLER
