#!/bin/sh
# Builds and runs the demonstration. NVCC's folder may be given as CUDA_HOME; PYTHON names an interpreter with torch.
# pip's packages serve as well: nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl (the version of torch's CUDA) put nvcc at
# nvidia/cu13/bin, beside the headers that torch's own wheels bring.
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-python3}
# FAULTLAB_ROWS names a library that was built elsewhere for the same torch, and needs no compiler:
[ -z "${FAULTLAB_ROWS:-}" ] || exec "$python" demo.py
if [ -z "${CUDA_HOME:-}" ]; then
    CUDA_HOME=$("$python" - <<'PY'
import os, shutil
nvcc = shutil.which("nvcc")
places = [os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))] if nvcc else []
try:
    import nvidia
    places += [os.path.join(p, "cu13") for p in nvidia.__path__]
except ImportError:
    pass
places += ["/usr/local/cuda"]
print(next((p for p in places if os.path.exists(os.path.join(p, "bin", "nvcc"))), ""))
PY
)
fi
[ -n "$CUDA_HOME" ] || { echo "no nvcc: set CUDA_HOME, or pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl" >&2; exit 3; }
export CUDA_HOME
export TORCH_EXTENSIONS_DIR="${TORCH_EXTENSIONS_DIR:-${TMPDIR:-/tmp}/faultlab-dsa}"
exec "$python" demo.py
