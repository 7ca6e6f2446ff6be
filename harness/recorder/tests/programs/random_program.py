"""A program left to chance, each call on a line of its own: random_program.py SEED.

One or two threads with streams that come and go, events between streams, waits of every kind, copies, fills, graphs that are
captured and replayed. Which piece of work faults is said by FAKE_FAULT_AT.
"""

import random
import sys
import threading

import fakecuda as cuda

KERNELS = ["vectorized_elementwise_kernel", "gather", "scale", "index_select"]
VIAS = ["", "", "ex", "library", "cooperative"]


class Writer:
    """Writes the calls of one thread. Its streams are its own, but for `shared`."""

    def __init__(self, chance, name):
        self.chance, self.name, self.lines, self.made = chance, name, [], 0
        self.streams, self.memory, self.events = [], [], []
        for _ in range(chance.randint(1, 3)):
            self.new_stream()
        for _ in range(2):
            self.memory.append(self.new("m", "cuda.Memory(64)"))
        self.events.append(self.new("e", "cuda.Event()"))
        self.recorded = set()

    def new(self, kind, call):
        self.made += 1
        name = f"{kind}{self.made}"
        self.lines.append(f"{name} = {call}")
        return name

    def new_stream(self):
        blocking = self.chance.random() < 0.2
        self.streams.append(self.new("s", f"cuda.Stream(blocking={blocking})"))

    def stream(self):
        everyone = 0.1
        return self.chance.choice(["None", "shared"]) if self.chance.random() < everyone else self.chance.choice(self.streams)

    def launch(self, stream):
        chance = self.chance
        kernel, via, time = chance.choice(KERNELS), chance.choice(VIAS), chance.choice([0, 0, 0, 20, 200])
        return f'cuda.launch("{kernel}", microseconds={time}, stream={stream}, via="{via}")'

    def step(self):
        chance, add = self.chance, self.lines.append
        memory = chance.choice(self.memory)
        kind = chance.choices(
            ["launch", "fill", "copy", "read", "record", "wait", "synchronize", "event", "context", "stream", "graph"],
            [40, 5, 5, 2, 6, 6, 4, 3, 1, 4, 3],
        )[0]
        if kind == "launch":
            add(self.launch(self.stream()))
        elif kind == "fill":
            add(f"{memory}.fill(1, stream={self.stream()})")
        elif kind == "copy":
            add(f"{memory}.copy({chance.choice(self.memory)}, stream={self.stream()})")
        elif kind == "read":
            add(f"{memory}.read(stream={chance.choice(self.streams)})")
        elif kind == "record":
            if chance.random() < 0.3:
                self.events.append(self.new("e", "cuda.Event()"))
            event = chance.choice(self.events)
            self.recorded.add(event)
            add(f"{event}.record({self.stream()})")
        elif kind == "wait" and self.recorded:
            add(f"{chance.choice(self.streams)}.wait({chance.choice(sorted(self.recorded))})")
        elif kind == "event" and self.recorded:
            add(f"{chance.choice(sorted(self.recorded))}.synchronize()")
        elif kind == "synchronize":
            add(f"{chance.choice(self.streams)}.synchronize()")
        elif kind == "context":
            add("cuda.synchronize()")
        elif kind == "stream" and len(self.streams) > 1 and chance.random() < 0.7:
            add(f"{self.streams.pop(chance.randrange(len(self.streams)))}.destroy()")
        elif kind == "stream":
            self.new_stream()
        elif kind == "graph":
            self.graph()

    def graph(self):
        # On a stream of its own: what it waited for before would have to be captured too.
        stream = self.new("s", "cuda.Stream()")
        self.made += 1
        graph = f"g{self.made}"
        self.lines.append(f"with cuda.Graph({stream}, mode=cuda.THREAD_LOCAL) as {graph}:")
        for _ in range(self.chance.randint(1, 12)):
            self.lines.append("    " + self.launch("None"))
        for _ in range(self.chance.randint(1, 3)):
            self.lines.append(f"{graph}.replay({self.chance.choice([stream, *self.streams])})")
        self.streams.append(stream)

    def function(self, steps):
        for _ in range(steps):
            self.step()
        return [f"def {self.name}():", *("    " + line for line in self.lines), ""]


def program(seed):
    chance = random.Random(seed)
    names = [f"thread_{n}" for n in range(chance.choice([1, 1, 2]))]
    lines = ["shared = cuda.Stream()"]
    for name in names:
        lines += Writer(chance, name).function(chance.randint(20, 80))
    return "\n".join(lines), names


def guarded(function):
    try:
        function()
    except cuda.Error:
        pass


text, names = program(int(sys.argv[1]))
if len(sys.argv) > 2:
    print(text)
space = {"cuda": cuda, "__name__": "generated"}
exec(compile(text, "/generated/program.py", "exec"), space)
threads = [threading.Thread(target=guarded, args=(space[name],)) for name in names[1:]]
for thread in threads:
    thread.start()
guarded(space[names[0]])
for thread in threads:
    thread.join()
guarded(cuda.synchronize)
print("done")
