"""What c10's device-side assertions give: python docs/tools/dsa/demo.py (needs a GPU, nvcc and a C++ compiler)."""
import os

import torch
from torch.utils import cpp_extension

here = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "{}.{}".format(*torch.cuda.get_device_capability()))
if built := os.environ.get("FAULTLAB_ROWS"):  # built elsewhere for the same torch
    torch.ops.load_library(built)
else:
    cpp_extension.load(name="faultlab_rows", sources=[os.path.join(here, "rows.cu")], is_python_module=False)
rows = torch.ops.faultlab_rows

table = torch.arange(40.0, device="cuda").reshape(10, 4)
index = torch.tensor([3, 10, 9], device="cuda")  # 10 is one past the last row

out = rows.take_rows_c10(table, index)
torch.cuda.synchronize()
print("with the stock wheel's registry: no error, and the row is silently", out[1].tolist(), flush=True)

rows.take_rows(table, index)
print("with a registry that is compiled in: the launch came back (asynchronous)", flush=True)
try:
    rows.check()
except RuntimeError as error:
    print(error, flush=True)
print("the context is alive:", rows.take_rows(table, index.clamp(max=9))[1].tolist(), flush=True)
rows.check()

rows.take_rows(table, index)
rows.check()  # uncaught, for the parser: exit 1
