"""Search for a decoder's temperature: a trial that fails is skipped."""
import torch
import torch.nn.functional as F

WORDS, BATCH, WIDTH = 32_000, 512, 1024
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    WORDS, BATCH, WIDTH = 1000, 16, 64  # a laptop gets a small one


def probabilities(hidden, head, temperature):
    logits = hidden @ head / max(temperature, 1e-3)
    return logits.float().softmax(dim=1)


def trial(hidden, head, temperature):
    """Draws words at a temperature; the value of a trial is how much they vary."""
    for _ in range(8):
        hidden = torch.tanh(hidden)
    p = probabilities(hidden, head, temperature)
    words = torch.multinomial(p, 4)
    return words.float().std()


def evaluate(hidden, head):
    """Runs whatever the outcome of the search is."""
    loss = F.cross_entropy(hidden @ head, torch.arange(len(hidden), device=device))
    return loss.item()


def main():
    torch.manual_seed(0)
    hidden = torch.randn(BATCH, WIDTH, device=device)
    head = torch.randn(WIDTH, WORDS, device=device) / WIDTH**0.5
    best = (0.0, None)
    for temperature in (1.0, 0.5, 0.0, 0.25):
        try:
            best = max(best, (trial(hidden, head, temperature).item(), temperature))
        except Exception as error:
            print(f"temperature {temperature}: skipped", flush=True)
    print(f"best temperature {best[1]}; loss {evaluate(hidden, head):.3f}", flush=True)


if __name__ == "__main__":
    main()
