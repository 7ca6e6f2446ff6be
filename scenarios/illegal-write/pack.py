"""Pack encoded documents of different lengths into one buffer, without padding."""
import sys

import torch

DIM, WIDTH, LIMIT = 2048, 256, 192  # features, longest row, longest row that is kept
DROPPED = 1 << 34  # the offset of a row that is not kept

PACK_ROWS = r"""
extern "C" __global__
void pack_rows(float *packed, const float *rows, const long long *offsets, const int *lengths, int stride) {
  const float *row = rows + (long long)blockIdx.x * stride;
  float *out = packed + offsets[blockIdx.x];
  for (int i = threadIdx.x; i < lengths[blockIdx.x]; i += blockDim.x)
    out[i] = row[i];
}
"""


def plan(lengths):
    """Sizes and starts of the rows in the packed buffer, in elements, and the buffer's size."""
    sizes, offsets, total = [], [], 0
    for length in lengths:
        sizes.append(length * DIM)
        if length > LIMIT:
            offsets.append(DROPPED)  # ROOT
            continue
        offsets.append(total)
        total += sizes[-1]
    return sizes, offsets, total


class Packer:
    def __init__(self):
        self.kernel = torch.cuda._compile_kernel(PACK_ROWS, "pack_rows", nvcc_options=["-lineinfo"])

    def __call__(self, rows, sizes, offsets, total):
        packed = torch.empty(total, device=rows.device)
        grid, block = (len(rows), 1, 1), (256, 1, 1)
        self.kernel(grid, block, (packed, rows, offsets, sizes, WIDTH * DIM))  # FAULT
        return packed.view(-1, DIM)


def encode(documents, weight):
    for _ in range(4):
        documents = torch.tanh(documents @ weight)
    return documents


def main():
    if not torch.cuda.is_available():
        sys.exit("pack.py needs a CUDA device: the packing kernel has no CPU version")
    torch.manual_seed(0)
    weight = torch.randn(DIM, DIM, device="cuda") / DIM**0.5
    packer = Packer()
    for batch, longest in enumerate([150, 180, 230, 170]):
        lengths = torch.linspace(20, longest, 128).int().tolist()
        sizes, offsets, total = plan(lengths)
        sizes = torch.tensor(sizes, dtype=torch.int32, device="cuda")
        offsets = torch.tensor(offsets, device="cuda")
        encoded = encode(torch.randn(128, WIDTH, DIM, device="cuda"), weight)
        packed = packer(encoded, sizes, offsets, total)  # CALLER
        pooled = packed.mean(dim=0)
        print(f"batch {batch}: {len(packed)} rows, mean {pooled.mean().item():+.5f}", flush=True)


if __name__ == "__main__":
    main()  # CALLER
