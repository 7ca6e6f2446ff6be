"""Lets Inductor generate Triton code on a machine without a GPU, and loads what it generates without running it."""

import torch
import torch._inductor.async_compile
import torch._inductor.config
import torch.utils._triton

torch._inductor.config.cpu_backend = "triton"
torch._inductor.config.compile_threads = 1
torch.utils._triton.triton_hash_with_backend = lambda: "none"


class Kernel:
    def run(self, *args, **kwargs):
        pass


torch._inductor.async_compile.AsyncCompile.triton = lambda self, *args, **kwargs: Kernel()

import model

model.main()
