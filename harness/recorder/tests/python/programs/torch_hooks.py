"""Walks from inside PyTorch: hooks of modules, of gradients, and a backward function of the program's own."""

import torch

import hook
from hook import check


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        check()
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        check()
        return gradient * 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(3)])

    def forward(self, x):
        x = self.layers(
            x
        )
        return Double.apply(x)


def frames_of_the_program(*_):
    report = hook.walk()
    files = [f for f in report["frames"] if f["file"] == __file__ and f["user"]]
    assert [f["function"] for f in files][-2:] == ["main", "<module>"], report
    assert any(f["function"].endswith("forward") for f in files), report
    check()


def main():
    model = Model()
    model.layers[2][1].register_forward_hook(frames_of_the_program)
    model.layers[0][0].weight.register_hook(lambda g: check() and None)
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()


main()
assert hook.checked >= 4
print(f"{hook.walk()['description']}, torch {torch.__version__}: {hook.checked} checks")
