"""Anomaly mode, as `torch.autograd.set_detect_anomaly(True)` at the top of the program would turn it on."""


def activate(torch):
    torch.autograd.set_detect_anomaly(True)
    return f"torch.is_anomaly_enabled() is {torch.is_anomaly_enabled()}"
