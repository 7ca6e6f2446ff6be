"""Sees whether the program has a GPU: it must not."""


def activate(torch):
    return f"torch.cuda.is_available() is {torch.cuda.is_available()}"
