import torch

scale = torch.rand(8, requires_grad=True)
linear = torch.nn.Linear(16, 16)


def pick(table, index):
    return table[index]  # gate


def route(x, expert):
    y = torch.sin(x) * 2  # sine
    gate = pick(scale, expert)
    z = (y * gate[:, None]).relu()
    z = linear(z)  # matmul
    return torch.nn.functional.cross_entropy(z, expert)  # loss


def main():
    x = torch.randn(32, 16, requires_grad=True)
    torch.compile(route)(x, torch.randint(0, 8, (32,))).backward()
