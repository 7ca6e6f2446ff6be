"""Deterministic algorithms, and memory that is filled before it is handed out."""


def activate(torch):
    import torch.utils.deterministic

    # Only warnings: an operation without a deterministic form would end the program before its fault.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cudnn.benchmark = False
    return (f"deterministic algorithms: {torch.are_deterministic_algorithms_enabled()}, "
            f"memory filled: {torch.utils.deterministic.fill_uninitialized_memory}")
