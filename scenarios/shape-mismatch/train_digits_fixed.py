"""Train a small convolutional network on 28 x 28 digit images."""
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DigitNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.hidden = nn.Linear(32 * 5 * 5, 128)
        self.classifier = nn.Linear(128, classes)

    def forward(self, images):
        maps = self.features(images).flatten(start_dim=1)
        hidden = torch.relu(self.hidden(maps))
        return self.classifier(hidden)


def load_digits(batches, batch_size):
    """Noisy digits: each class is a fixed pattern."""
    generator = torch.Generator().manual_seed(11)
    patterns = torch.randn(10, 1, 28, 28, generator=generator)
    for _ in range(batches):
        labels = torch.randint(10, (batch_size,), generator=generator)
        noise = torch.randn(batch_size, 1, 28, 28, generator=generator)
        yield patterns[labels] + 0.5 * noise, labels


def train_step(model, optimizer, images, labels):
    logits = model(images)
    loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    model = DigitNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, (images, labels) in enumerate(load_digits(batches=6, batch_size=64)):
        loss = train_step(model, optimizer, images.to(device), labels.to(device))
        print(f"step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
