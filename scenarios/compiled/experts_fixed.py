"""Route tokens to experts in a compiled function."""
import sys

import torch

EXPERTS, WIDTH, TOKENS, STEPS = 8, 1024, 8192, 4


@torch.compile
def route(tokens, expert, scale, bias):
    hidden = torch.sin(tokens) * 2
    gate = scale[expert]
    hidden = hidden * gate[:, None] + bias
    return hidden.relu()


def assign(step, generator):
    expert = torch.randint(EXPERTS, (TOKENS,), generator=generator)
    if step == 2:
        expert[1000:1010] = 0
    return expert


def main():
    if not torch.cuda.is_available():
        sys.exit("experts.py needs a CUDA device: it is about generated kernels")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    scale, bias = torch.rand(EXPERTS, device="cuda"), torch.rand(WIDTH, device="cuda")
    weight = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5
    tokens = torch.randn(TOKENS, WIDTH, device="cuda")
    for step in range(STEPS):
        expert = assign(step, generator).cuda()
        for _ in range(8):
            tokens = torch.tanh(tokens @ weight)
        routed = route(tokens, expert, scale, bias)
        print(f"step {step}: mean {routed.mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
