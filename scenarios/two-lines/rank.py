"""Score users against items: two tables, one look-up each, the same kernel for both."""
import torch

USERS, ITEMS, WIDTH, BATCH = 50_000, 20_000, 512, 8192
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    USERS, ITEMS, WIDTH, BATCH = 500, 200, 32, 64  # a laptop gets small tables


class Towers:
    def __init__(self):
        self.users = torch.randn(USERS, WIDTH, device=device)
        self.items = torch.randn(ITEMS, WIDTH, device=device)
        self.mix = torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5

    def score(self, users, items):
        user_rows = self.users.index_select(0, users)
        for _ in range(4):
            user_rows = torch.tanh(user_rows @ self.mix)
        item_rows = self.items.index_select(0, items)  # FAULT
        for _ in range(4):
            item_rows = torch.tanh(item_rows @ self.mix)
        return (user_rows * item_rows).sum(dim=1)


def clicks(day, generator):
    """The clicks of a day: who, and on what. New items get the next free number."""
    users = torch.randint(USERS, (BATCH,), generator=generator)
    released = ITEMS + 64 * max(0, day - 2)  # ROOT
    return users, torch.randint(released, (BATCH,), generator=generator)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(5)
    towers = Towers()
    for day in range(5):
        users, items = clicks(day, generator)
        scores = towers.score(users.to(device), items.to(device))  # CALLER
        print(f"day {day}: best score {scores.max().item():.3f}", flush=True)


if __name__ == "__main__":
    main()  # CALLER
