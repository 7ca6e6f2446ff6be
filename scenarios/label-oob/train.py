"""Train an activity classifier on windows of wrist-sensor features."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ["walk", "run", "sit", "stand", "lie", "climb", "descend", "cycle", "drive", "fall"]
FEATURES = 64
device = "cuda" if torch.cuda.is_available() else "cpu"
# The full model is for the GPU; a laptop gets a small one.
BATCH, WIDTH, DEPTH = (8192, 4096, 6) if device == "cuda" else (64, 128, 2)


def encode(name):
    return CLASSES.index(name) if name in CLASSES else len(CLASSES)  # ROOT


class Windows(Dataset):
    """Feature vectors, each with the activity that the annotator wrote down."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(7)
        self.features = torch.randn(count, FEATURES, generator=generator)
        picks = torch.randint(len(CLASSES), (count,), generator=generator)
        self.names = [CLASSES[i] for i in picks.tolist()]
        self.names[3 * BATCH + 17] = "swim"  # one volunteer went to the pool

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.features[index], encode(self.names[index])


def build_model():
    layers = [nn.Linear(FEATURES, WIDTH, device=device), nn.ReLU()]
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH, device=device), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, len(CLASSES), device=device))


def train_step(model, criterion, optimizer, features, labels):
    logits = model(features)
    loss = criterion(logits, labels)  # FAULT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    model = build_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(Windows(5 * BATCH), batch_size=BATCH)
    for step, (features, labels) in enumerate(loader):
        features, labels = features.to(device), labels.to(device)
        loss = train_step(model, criterion, optimizer, features, labels)  # CALLER
        print(f"step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()  # CALLER
