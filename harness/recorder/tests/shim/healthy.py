"""Parts of torch in which a hook, a mode or a check could do harm. Prints results to the last bit."""
import hashlib
import threading
import warnings

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")
torch.manual_seed(0)
torch.set_num_threads(1)


def digest(tensors):
    return hashlib.sha1(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)).hexdigest()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.relu = nn.ReLU(inplace=True)
        self.out = nn.Linear(16, 20)

    def forward(self, x, mask):
        h, _ = self.lstm(self.embedding(x))
        return self.out(self.relu(self.layer(h, src_mask=mask)))


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=True)
mask = nn.Transformer.generate_square_subsequent_mask(7)  # has -inf
for _ in range(15):
    x, y = torch.randint(0, 20, (2, 4, 7))
    loss = nn.functional.cross_entropy(net(x, mask).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained", loss.item(), digest(net.parameters()))

linear = nn.Linear(3, 3)
parameters = dict(linear.named_parameters())
loss_of = lambda p, x: torch.func.functional_call(linear, p, (x,)).sum()
per_sample = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(parameters, torch.randn(5, 3))
print("functorch", digest(per_sample.values()))
traced = torch.jit.trace(linear, torch.randn(2, 3))
print("traced", [n.kind() for n in traced.inlined_graph.nodes()], digest([traced(torch.ones(1, 3))]))
pair = nn.Sequential(linear, nn.ReLU())
print("symbolic", [n.name for n in torch.fx.symbolic_trace(pair).graph.nodes])
print("exported", [n.name for n in torch.export.export(pair, (torch.randn(2, 3),)).graph.nodes])
with torch.inference_mode():
    print("inference", digest([linear(torch.ones(2, 3))]))
with torch.autocast("cpu", dtype=torch.bfloat16):
    print("autocast", linear(torch.ones(2, 3)).dtype)
for reentrant in (True, False):
    x = torch.ones(2, 3, requires_grad=True)
    checkpoint(linear, x, use_reentrant=reentrant).sum().backward()
    print("checkpoint", digest([x.grad]))
same = nn.Identity()
for odd in (torch.empty(0, 3), torch.eye(3).to_sparse(), torch.ones(2, dtype=torch.complex64), torch.ones(2, device="meta"),
            torch._efficientzerotensor((2,)), torch.ones(3, dtype=torch.int64)):
    print("odd", same(odd).shape)
sharded = nn.Linear(3, 3)
sharded.weight.untyped_storage().resize_(0)  # as a sharded parameter between two uses
sharded.forward = lambda x: x
print("given back", sharded(torch.ones(2)))


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("meant")


for _ in range(3):
    try:
        nn.Sequential(linear, Raises())(torch.ones(1, 3))
    except ValueError as error:
        print("raised", error)
results = [None] * 4


def work(i):
    for _ in range(50):
        results[i] = linear(torch.full((2, 3), float(i)))


threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("threads", digest(results))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return linear(torch.full((1, 3), float(i))).detach()


print("workers", digest(torch.utils.data.DataLoader(Numbers(), num_workers=2)))
compiled = torch.compile(pair, fullgraph=True, backend="aot_eager")
x = torch.ones(2, 3, requires_grad=True)
compiled(x).sum().backward()
print("compiled", digest([x.grad]), dict(torch._dynamo.utils.counters["graph_break"]))
