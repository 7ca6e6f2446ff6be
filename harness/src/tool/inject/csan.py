"""Sees whether TORCH_CUDA_SANITIZER switched torch's CUDA sanitizer on; it prints nothing as long as it finds nothing."""


def activate(torch):
    try:
        from torch.cuda._sanitizer import cuda_sanitizer
    except ImportError as error:
        return f"this torch has no CUDA sanitizer: {error}"
    return f"torch.cuda._sanitizer is {'on' if cuda_sanitizer.enabled else 'off'}"
