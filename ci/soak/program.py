"""A small training job that uses the GPU in many ways at once: several streams, a second launching thread, DataLoader workers,
a CUDA graph, C++ and Python autograd nodes, a kernel of its own. Healthy, it prints the same lines every time.

FAULT_AT=PLACE:STEP makes it fault at one line: PLACE is the name behind a `# SITE`, STEP one of 0 to STEPS - 1. The bad value
is written on the device, some launches before the line, and nothing waits for it. Every place can fault.
"""
import os
import queue
import threading

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums on every stream

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEV = os.environ.get("SOAK_DEVICE", "cuda")
STEPS, BATCH, WORDS, WIDTH, CLASSES = 6, 64, 200, 32, 10
FAR = 1 << 30  # beyond every table; times a row's size, beyond every allocation
PLACE, _, STEP = os.environ.get("FAULT_AT", ":-1").partition(":")
STEP = int(STEP or -1)

SCALE_ROWS = r"""
extern "C" __global__ void scale_rows(float *out, const float *in, const long long *rows, int width) {
  out[blockIdx.x * width + threadIdx.x] = 2.0f * in[rows[blockIdx.x] * width + threadIdx.x];
}
"""


def poison(index, place, step):
    """Writes one bad value, on the device, if this is the place and the step to fault at."""
    if place == PLACE and step == STEP:
        index.data.view(-1)[3] = FAR
    return index


class Documents(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        return torch.randint(WORDS, (8,), generator=generator), at % CLASSES


class Reorder(torch.autograd.Function):
    """Permutes rows; its backward is Python."""

    @staticmethod
    def forward(ctx, rows, order, step):
        ctx.save_for_backward(order)
        ctx.step = step
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx, grad):
        (order,) = ctx.saved_tensors
        back = torch.zeros_like(grad)
        poison(order, "custom-backward", ctx.step)
        back.index_add_(0, order, grad)  # SITE: custom-backward
        return back, None, None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, words, order, picks, step):
        hidden = self.embed(words).mean(1)  # SITE: embedding
        hidden = Reorder.apply(torch.relu(self.mix(hidden)), order, step)
        hidden = torch.gather(hidden, 1, picks)  # SITE: backward-node
        return self.out(hidden)


def statistics(jobs, answers):
    """A thread that launches on a stream of its own."""
    stream = torch.cuda.Stream()
    table = torch.arange(WORDS, device=DEV)
    try:
        with torch.cuda.stream(stream):
            for step, words, ready in iter(jobs.get, None):
                stream.wait_event(ready)
                words = poison(words * 1, "thread", step)
                seen = torch.take(table, words)  # SITE: thread
                answers.put(int(seen.sum() % 9973))
    except Exception:
        # The context is dead, and the main thread will meet the same error.
        answers.put(None)


def captured(table):
    """A graph of a look-up and a reduction, and its input and output."""
    rows = torch.zeros(BATCH, dtype=torch.long, device=DEV)
    body = lambda: table.index_select(0, rows).square().sum()  # CAPTURED: replay
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = body()
    return graph, rows, total


def main():
    torch.manual_seed(0)
    model = Model().to(DEV)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    table = torch.arange(WORDS * WIDTH, device=DEV).view(WORDS, WIDTH) % 7 + 0.0
    graph, rows, total = captured(table)
    kernel = torch.cuda._compile_kernel(SCALE_ROWS, "scale_rows")
    side = torch.cuda.Stream()
    jobs, answers = queue.Queue(), queue.Queue()
    thread = threading.Thread(target=statistics, args=(jobs, answers), daemon=True)
    thread.start()
    loader = DataLoader(Documents(), batch_size=BATCH, num_workers=2, pin_memory=DEV == "cuda")
    for step, (words, labels) in enumerate(loader):
        words, labels = words.to(DEV, non_blocking=True), labels.to(DEV, non_blocking=True)
        order = torch.arange(BATCH - 1, -1, -1, device=DEV)
        picks = torch.arange(WIDTH, device=DEV).flip(0).repeat(BATCH, 1)
        side.wait_stream(torch.cuda.current_stream())
        jobs.put((step, words, torch.cuda.current_stream().record_event()))
        with torch.cuda.stream(side):
            index = poison(words[:, :4] % WIDTH, "side-stream", step)
            ahead = torch.gather(table[:BATCH], 1, index)  # SITE: side-stream
            ahead = ahead.sum()
        logits = model(poison(words * 1, "embedding", step), order, picks, step)
        loss = criterion(logits, poison(labels * 1, "loss", step))  # SITE: loss
        poison(picks, "backward-node", step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows.copy_(words[:, 0])
        poison(rows, "replay", step)
        graph.replay()  # SITE: replay
        scaled = torch.empty_like(table[:BATCH])
        chosen = poison(words[:, 1].contiguous(), "kernel", step)
        kernel((BATCH, 1, 1), (WIDTH, 1, 1), (scaled, table, chosen, WIDTH))  # SITE: kernel
        seen = answers.get()
        torch.cuda.current_stream().wait_stream(side)
        numbers = torch.stack([loss.detach(), total, scaled.sum(), ahead])
        print(f"step {step}", *(f"{n:.3f}" for n in numbers.tolist()), seen, flush=True)
    jobs.put(None)
    thread.join()
    weights = sum(p.detach().double().abs().sum() for p in model.parameters())
    print(f"weights {weights.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
