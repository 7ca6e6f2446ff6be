"""Replay-bound: a whole training step as one CUDA graph, replayed on another batch each time. On the CPU, which has no
graphs, the same step without one."""
import torch
from torch import nn

import timing

args, device = timing.arguments()
if device == "cuda":
    WIDTH, LAYERS, BATCH = 512, 12, 256
else:
    WIDTH, LAYERS, BATCH = 64, 4, 32
CLASSES, BATCHES, WARM_UP = 10, 8, 3

layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(device)
all_inputs = torch.randn(BATCHES, BATCH, WIDTH, device=device)
all_labels = torch.randint(0, CLASSES, (BATCHES, BATCH), device=device)
inputs, labels = all_inputs[0].clone(), all_labels[0].clone()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def train():
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def captured():
    """The step as a graph; as torch's documentation asks, a few steps on a side stream go before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train()

    def replay():
        graph.replay()
        return loss

    return replay


run = captured() if device == "cuda" else train
done = 0


def step():
    global done
    inputs.copy_(all_inputs[done % BATCHES])
    labels.copy_(all_labels[done % BATCHES])
    done += 1
    return run()


timing.measure("graph-replay", step, args, device)
