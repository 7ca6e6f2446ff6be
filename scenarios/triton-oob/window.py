"""Smooth long signals with a Triton kernel."""
import sys

import torch
import triton
import triton.language as tl

ROWS, LENGTH, BLOCK = 64, 1 << 16, 1024
FAR = 1 << 34  # the pitch of a tensor that was laid out for the whole archive


@triton.jit
def smooth_kernel(out, signal, pitch, length, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(signal + row * pitch + at, mask=at < length, other=0.0)
    left = tl.load(signal + row * pitch + at - 1, mask=(at > 0) & (at < length), other=0.0)
    tl.store(out + row * length + at, 0.5 * (here + left), mask=at < length)


def smooth(signal, pitch):
    out = torch.empty_like(signal)
    grid = (triton.cdiv(LENGTH, BLOCK), len(signal))
    smooth_kernel[grid](out, signal, pitch, LENGTH, BLOCK=BLOCK)  # FAULT
    return out


def load(part):
    """A part of the archive, and how far apart its rows are, in elements."""
    signal = torch.randn(ROWS, LENGTH, device="cuda")
    return signal, FAR if part == 2 else signal.stride(0)  # ROOT


def main():
    if not torch.cuda.is_available():
        sys.exit("window.py needs a CUDA device: Triton kernels run nowhere else")
    torch.manual_seed(0)
    weight = torch.randn(4096, 4096, device="cuda") / 64
    for part in range(4):
        signal, pitch = load(part)
        for _ in range(8):
            weight = torch.tanh(weight @ weight)
        smoothed = smooth(signal, pitch)  # CALLER
        print(f"part {part}: mean {smoothed.mean().item():+.5f} {weight[0, 0].item():+.2f}", flush=True)


if __name__ == "__main__":
    main()  # CALLER
