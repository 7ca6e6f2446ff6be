"""Score support tickets with a small attention classifier."""
import torch
from torch import nn

WORDS = "<pad> my order parcel never arrived refund please where is the late broken app login fails again".split()
TICKETS = [
    ("my order never arrived", "refund please"),
    ("the app login fails again", "please"),
    ("where is my parcel", "the parcel is late"),
    ("the parcel arrived broken", "refund my order please"),
]
device = "cuda" if torch.cuda.is_available() else "cpu"


class Tokenizer:
    def __init__(self, words):
        self.ids = {word: index for index, word in enumerate(words)}

    def add_special(self, token):
        self.ids[token] = len(self.ids)  # ROOT

    def encode(self, subject, body, width=16):
        ids = [self.ids[word] for word in f"{subject} <sep> {body}".split()]
        return ids + [self.ids["<pad>"]] * (width - len(ids))


class Scorer(nn.Module):
    def __init__(self, rows, dim=64, classes=3):
        super().__init__()
        self.embed = nn.Embedding(rows, dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        hidden = self.embed(ids)  # FAULT
        query = self.query(hidden)
        key = self.key(hidden)
        weights = torch.softmax(query @ key.transpose(1, 2) / query.shape[-1] ** 0.5, dim=-1)
        return self.head((weights @ hidden).mean(dim=1))


@torch.no_grad()
def score(model, tokenizer, tickets):
    ids = torch.tensor([tokenizer.encode(*ticket) for ticket in tickets], device=device)
    return model(ids).softmax(dim=-1)  # CALLER


def main():
    torch.manual_seed(0)
    tokenizer = Tokenizer(WORDS)
    tokenizer.add_special("<sep>")
    model = Scorer(len(WORDS)).to(device).eval()
    scores = score(model, tokenizer, TICKETS)  # CALLER
    for (subject, _), row in zip(TICKETS, scores.tolist()):
        print(f"{subject:30}", *(f"{p:.3f}" for p in row))


if __name__ == "__main__":
    main()  # CALLER
