"""Add a day's documents to a search index, and leave the index in shared memory on the GPU for the servers."""
import torch

SLOTS, WIDTH, DAYS = 4096, 1024, 4
device = "cuda" if torch.cuda.is_available() else "cpu"
DOCUMENTS = 512 if device == "cuda" else 32


class Index:
    """A ring of slots: the newest documents overwrite the oldest."""

    def __init__(self):
        self.vectors = torch.zeros(SLOTS, WIDTH, device=device)
        self.next = SLOTS - 3 * DOCUMENTS - DOCUMENTS // 2

    def add(self, vectors):
        slots = torch.arange(self.next, self.next + len(vectors), device=device) % SLOTS
        self.vectors.index_copy_(0, slots, vectors)
        self.next = (self.next + len(vectors)) % SLOTS


def encode(texts, weight):
    vectors = texts
    for _ in range(40):
        vectors = torch.tanh(vectors @ weight)
    return vectors / vectors.norm(dim=1, keepdim=True)


def main():
    torch.manual_seed(0)
    weight = torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5
    index = Index()
    for day in range(DAYS):
        texts = torch.randn(DOCUMENTS, WIDTH, device=device)
        index.add(encode(texts, weight))
        print(f"day {day}: {len(texts)} documents queued", flush=True)


if __name__ == "__main__":
    main()
