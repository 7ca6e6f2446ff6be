"""Count which classifier confuses which classes; the counts stay on the GPU until the end."""
import torch

CLASSES, WIDTH, BATCH, STEPS = 100, 2048, 8192, 12
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    WIDTH, BATCH = 64, 64  # a laptop gets a small one


class Confusion:
    def __init__(self):
        self.counts = torch.zeros(CLASSES * CLASSES, device=device)

    def add(self, truth, guess):
        cells = truth * CLASSES + guess
        self.counts.scatter_add_(0, cells, torch.ones_like(cells, dtype=torch.float))


def labels_of(step, generator):
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    if step == 2:
        labels[5] = CLASSES - 1
    return labels


def calibrate(scale, rounds):
    """Small steps on a few numbers, hundreds of launches that have nothing to do with the counts."""
    for _ in range(rounds):
        scale = scale * 0.99 + 0.01
    return scale


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5
    head = torch.randn(WIDTH, CLASSES, device=device)
    batches = [labels_of(step, generator).to(device) for step in range(STEPS)]
    hidden = torch.randn(BATCH, WIDTH, device=device)
    confusion, scale = Confusion(), torch.ones(CLASSES, device=device)
    for labels in batches:
        for _ in range(6):
            hidden = torch.tanh(hidden @ weight)
        confusion.add(labels, (hidden @ head * scale).argmax(dim=1))
        scale = calibrate(scale, 40)
    print(f"scale {scale.mean().item():.4f}", flush=True)
    print(f"{confusion.counts.sum().item():.0f} counted", flush=True)


if __name__ == "__main__":
    main()
