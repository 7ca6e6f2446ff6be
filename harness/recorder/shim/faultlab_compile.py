"""Joins the kernels that torch.compile generates to the lines of the user's function.

Inductor fuses nodes of an FX graph into a kernel, and each node still knows the Python stack that made it, in the
backward graph as well. Three places are looked at while a graph is compiled or taken from Inductor's cache:

- `define_kernel` of each scheduling class gets the fused nodes and returns the kernel's name;
- `CompiledFxGraph.after_deserialization` of a graph from the cache: its text has each node with file, line and code,
  and the generated file lists the nodes of each kernel in comments;
- `PyCodeCache.load_by_key_path` loads the generated file: from its text come the lines that launch each kernel, and
  from its line map the origin of launches that are no generated kernel (cuBLAS, fallbacks, Triton kernels of the user).

Nothing of what Inductor generates is changed, and no configuration is set: caches stay valid both ways.

Each kernel is a line of `kernels.<pid>.jsonl`:
- kernel     name in the generated file; for Triton it is the kernel's symbol (until torch 2.5 the symbol is `triton_`)
- generated  path of the generated file
- lines      lines of that file that launch it
- sources    lines of the user's function that it was made from, the likeliest to index out of bounds first:
             file, line, function, op, code, and where known `bound`, the size that an index must be below;
             `stack` has the outer frames inside the compiled function, innermost first
- from       `compile`, `cache` or `line-map` (one of the fused lines only)
"""
import bisect
import linecache
import os
import re
import threading

import faultlab_shim as shim

KERNELS = 20000  # a process, at most
SOURCES = 32  # a kernel
STACK = 8  # frames a source

# Operators that read or write at a position that the data gives. `gather` and `index` are also what the losses and
# embeddings are decomposed into.
INDEXING = re.compile(
    r"(?:^|\.)(?:_unsafe_)?_?(?:index|index_put|index_select|index_add|index_copy|index_fill|gather|scatter|scatter_add|"
    r"scatter_reduce|embedding|embedding_bag|embedding_dense_backward|nll_loss\w*|take|put|masked_index\w*|"
    r"masked_index_put\w*|one_hot|getitem|bucketize|searchsorted|repeat_interleave|multinomial)_?(?:$|\.)")
TRACE = re.compile(r'File "(.+)", line (\d+), in (.+)\n(?: {4}(.+)\n?)?')
# In a generated file: a launch, and the definition of a Triton kernel under its comments.
CALL = re.compile(r"^\s+(?:[\w, ()\[\]]+ = )?([A-Za-z_][\w.]*)\(")
DEFINED = re.compile(r"^(\w+) = async_compile\.(\w+)\(")
FRAGMENT = re.compile(r"^#\s+%(\w+) .*= call_function\[target=([\w.]+)\]")
MAPPED = re.compile(r"^#\s+\S+ => (.+)$")
OPAQUE = re.compile(r"^(?:extern_kernels|aten|inductor_ops|_quantized|torch\.ops)\.[\w.]+$")
# In the text of a graph: `print_readable` of torch.fx.
PLACE = re.compile(r"^\s*# File: (.+):(\d+) in (.+?), code: (.*)$")
NODE = re.compile(r'^\s+(\w+)(?:: "(\w+)\[([^\]"]*)\][^"]*")? = ([\w.]+)\((.*)')
ARGUMENT = re.compile(r'(\w+): "\w+\[([^\]"]*)\]')

_state = threading.local()
_lock = threading.Lock()
_loaded = set()  # generated files that were noted
_count = 0


def install():
    shim.AfterImport({
        "torch._inductor.codecache": _codecache,
        "torch._inductor.output_code": _output_code,
        "torch._inductor.graph": _graph,
    }).install()


def _quietly(function, *args):
    try:
        return function(*args)
    except Exception as error:
        shim.notice(f"the lines of a compiled function are not known: {error!r}")
        return None


# --- hooks ---------------------------------------------------------------------------------------------------------


def _graph(module):
    """torch._inductor.graph: around the compilation of a graph."""
    lowering = module.GraphLowering
    original = lowering.compile_to_module

    def compile_to_module(self, *args, **kwargs):
        _quietly(_wrap_schedulings)
        outer = getattr(_state, "kernels", None)
        _state.kernels = []
        try:
            compiled = original(self, *args, **kwargs)
            # What `load_by_key_path` did not take: the C++ wrapper launches from C++, with no line of Python.
            _quietly(_flush, getattr(compiled, "__file__", None))
            return compiled
        finally:
            _state.kernels = outer

    lowering.compile_to_module = compile_to_module


def _wrap_schedulings():
    """Every scheduling class that exists by now; a back-end's is imported when its device is first used."""
    from torch._inductor.scheduler import BaseScheduling

    classes = [BaseScheduling]
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        define = cls.__dict__.get("define_kernel")
        if define is not None and not hasattr(define, "_faultlab"):
            cls.define_kernel = _define_kernel(define)


def _define_kernel(original):
    def define_kernel(self, src_code, node_schedule, *args, **kwargs):
        name = original(self, src_code, node_schedule, *args, **kwargs)
        _quietly(_note_kernel, name, node_schedule)
        return name

    define_kernel._faultlab = True
    return define_kernel


def _codecache(module):
    """torch._inductor.codecache: generated files; until torch 2.5 also the graphs of the cache."""
    original = module.PyCodeCache.load_by_key_path.__func__

    def load_by_key_path(cls, key, path, linemap=None, *args, **kwargs):
        loaded = original(cls, key, path, *(() if linemap is None else (linemap,)), *args, **kwargs)
        # Kernels and benchmarks are loaded this way too; only a graph's file comes with a line map.
        if linemap is not None:
            _quietly(_note_file, path, linemap)
        return loaded

    module.PyCodeCache.load_by_key_path = classmethod(load_by_key_path)


def _output_code(module):
    """torch._inductor.output_code: graphs of the cache, torch 2.6 and later."""
    original = module.CompiledFxGraph.after_deserialization

    def after_deserialization(self, *args, **kwargs):
        _state.text = getattr(self, "inductor_post_grad_graph_str", None)  # 2.8 and later
        try:
            return original(self, *args, **kwargs)
        finally:
            _state.text = None

    module.CompiledFxGraph.after_deserialization = after_deserialization


# --- a kernel that is generated now --------------------------------------------------------------------------------


def _note_kernel(name, node_schedule):
    kernels = getattr(_state, "kernels", None)
    if kernels is None or not isinstance(name, str) or len(kernels) >= KERNELS:
        return
    origins = {}
    for node in node_schedule if isinstance(node_schedule, (list, tuple)) else [node_schedule]:
        _origins(node, origins, 0)
    sources = []
    for fx in _in_order(origins):
        trace = fx.stack_trace if fx.op == "call_function" else None
        if trace:
            _add(sources, _frames(trace), str(fx.target), _bound_of(fx))
    kernels.append((name, sources))


def _origins(node, found, depth):
    """FX nodes that a scheduler node was made from; fused nodes have nodes of their own."""
    inner = getattr(node, "snodes", None)
    if inner and depth < 8:
        for n in inner:
            _origins(n, found, depth + 1)
        return
    buffer = getattr(node, "node", None)
    for fx in getattr(buffer, "origins", None) or ():
        found[fx] = None


def _in_order(origins):
    """In the order of the graph, where all are of one."""
    graphs = {n.graph for n in origins}
    if len(graphs) != 1:
        return sorted(origins, key=lambda n: n.name)
    return [n for n in next(iter(graphs)).nodes if n in origins]


def _bound_of(fx):
    """The size that the indices of an indexing node must be below: a string, or None."""
    args = fx.args
    if not args or not INDEXING.search(str(fx.target)):
        return None
    value = getattr(args[0], "meta", {}).get("val")
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    name = str(fx.target)
    if isinstance(args[1] if len(args) > 1 else None, (list, tuple)):
        dims = [i for i, index in enumerate(args[1]) if index is not None]
    elif "embedding" in name:
        dims = [0]
    elif len(args) > 1 and isinstance(args[1], int):
        dims = [args[1]]
    else:
        return None
    return _sizes([str(s) for s in shape], dims)


def _sizes(shape, dims):
    sizes = list(dict.fromkeys(shape[d] for d in dims if -len(shape) <= d < len(shape)))
    return sizes[0] if len(sizes) == 1 else None


# --- stack traces --------------------------------------------------------------------------------------------------


def _frames(trace):
    """(file, line, function, code), outermost first, of the text of a stack."""
    return [(f, int(n), name.strip(), (code or "").strip()) for f, n, name, code in TRACE.findall(trace)]


def _torch_file(file):
    return f"{os.sep}torch{os.sep}" in file and "-packages" + os.sep in file


def _add(sources, frames, op, bound=None):
    """Adds a source line, or the operator to the line that is known already."""
    own = [f for f in frames if not _torch_file(f[0])] or frames
    if not own:
        return
    file, line, function, code = own[-1]
    for known in sources:
        if (known["file"], known["line"], known["function"]) == (file, line, function):
            if op not in known["ops"] and len(known["ops"]) < SOURCES:
                known["ops"].append(op)
            if bound and bound not in known["bounds"]:
                known["bounds"].append(bound)
            return
    if len(sources) < 4 * SOURCES:
        stack = [{"file": f, "line": n, "function": name} for f, n, name, _ in own[-2::-1][:STACK]]
        sources.append({"file": file, "line": line, "function": function, "code": code, "ops": [op],
                        "bounds": [bound] if bound else [], "stack": stack})


def _ranked(sources):
    """The sources as they are written, those that index by data first, each in the order of the graph."""
    written = []
    for source in sources:
        ops = sorted(source["ops"], key=lambda op: not INDEXING.search(op))
        entry = {"file": source["file"], "line": source["line"], "function": source["function"], "op": ops[0] or ""}
        if len(ops) > 1:
            entry["ops"] = ops
        if source["code"]:
            entry["code"] = source["code"]
        if source["bounds"]:
            entry["bound"] = source["bounds"][0]
            if len(source["bounds"]) > 1:
                entry["bounds"] = source["bounds"]
        if source["stack"]:
            entry["stack"] = source["stack"]
        written.append(entry)
    written.sort(key=lambda s: not INDEXING.search(s["op"]))
    return written[:SOURCES]


def _current(file, line, code):
    """Where `code` is now: a graph of the cache may be older than an edit above it. None if it cannot be told."""
    linecache.checkcache(file)
    text = [t.strip() for t in linecache.getlines(file)]
    if not text:  # not on this machine: believe the cache
        return line
    if not code or (0 < line <= len(text) and text[line - 1] == code):
        return line
    found = [i + 1 for i, t in enumerate(text) if t == code]
    return found[0] if len(found) == 1 else None


# --- a generated file ----------------------------------------------------------------------------------------------


def _note_file(path, linemap):
    with _lock:
        if path in _loaded or len(_loaded) >= KERNELS:
            return
        _loaded.add(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(32 << 20).split("\n")
    launches = {}  # name -> lines, in order
    defined = {}  # name -> what compiles it
    for number, line in enumerate(text, 1):
        define = DEFINED.match(line)
        if define:
            defined[define[1]] = define[2]
            continue
        call = CALL.match(line)
        if call:
            name = call[1][:-4] if call[1].endswith(".run") else call[1]
            if name in defined or call[1].endswith(".run") or OPAQUE.match(name):
                launches.setdefault(name, []).append(number)
    kernels = getattr(_state, "kernels", None)
    how = "compile"
    if kernels is None:
        kernels, how = _from_cache(text), "cache"
    else:
        _state.kernels = []
    known = {}
    for name, sources in kernels:
        known.setdefault(name, []).append(sources)
    for name, groups in known.items():
        lines = launches.pop(name, [])
        if len(groups) == len(lines) and len(groups) > 1:  # one text for several places: each launch has its own
            for group, line in zip(groups, lines):
                _write(name, path, [line], group, how)
        else:
            merged = []
            for source in (s for group in groups for s in group):
                if source not in merged:
                    merged.append(source)
            if merged or not lines:
                _write(name, path, lines, merged, how)
            else:
                launches[name] = lines
    starts = [n for n, _ in linemap]
    for name, lines in launches.items():
        if defined.get(name, "").startswith("cpp"):
            continue  # written out late, under the entry of the node after it
        for line in lines:
            place = bisect.bisect_right(starts, line)
            trace = linemap[place - 1][1] if place else None
            sources = []
            if trace:
                frames = _frames(trace)
                if how == "cache":
                    frames = _now(frames)
                _add(sources, frames, name)
            if sources:
                _write(name, path, [line], sources, "line-map")


def _now(frames):
    now = [(f, _current(f, n, code), name, code) for f, n, name, code in frames]
    return now if all(n for _, n, _, _ in now) else []


def _from_cache(text):
    """(kernel, sources) of a graph that was not compiled now: comments of its file joined with the graph's text."""
    graph = getattr(_state, "text", None)
    if not graph:
        return []
    nodes = _parse_graph(graph)
    kernels, names = [], []
    for line in text:
        define = DEFINED.match(line)
        fragment = None if define else FRAGMENT.match(line)
        mapped = None if define or fragment else MAPPED.match(line)
        if fragment:
            names.append(fragment[1])
        elif mapped:
            names += [n.strip() for n in mapped[1].split(",")]
        elif define:
            sources = []
            for name in sorted(set(names), key=lambda n: nodes[n][2] if n in nodes else 0):
                if name in nodes:
                    frame, op, _, bound = nodes[name]
                    _add(sources, _now([frame]), op, bound)
            if sources:
                kernels.append((define[1], sources))
            names = []
        elif line and not line.startswith("#"):
            names = []
    return kernels


def _parse_graph(text):
    """name -> ((file, line, function, code), op, place in the graph, bound)."""
    nodes, shapes, frame = {}, {}, None
    for line in text.split("\n"):
        place = PLACE.match(line)
        if place:
            frame = (place[1], int(place[2]), place[3], place[4].strip())
            continue
        if line.lstrip().startswith("def "):
            shapes.update({n: _shape(s) for n, s in ARGUMENT.findall(line)})
            continue
        if line.lstrip().startswith("#"):
            frame = None  # "No stacktrace found for following nodes"
            continue
        node = NODE.match(line)
        if node:
            name, _, shape, op, args = node.groups()
            if shape is not None:
                shapes[name] = _shape(shape)
            op = op[len("torch.ops."):] if op.startswith("torch.ops.") else op
            if frame:
                nodes[name] = (frame, op, len(nodes), _bound_in(op, args, shapes))
    return nodes


def _shape(text):
    return [s.strip() for s in text.split(",") if s.strip()]


def _bound_in(op, args, shapes):
    if not INDEXING.search(op):
        return None
    first = re.match(r"(\w+), (?:\[([^\]]*)\]|(-?\d+)\b)?", args)
    if not first or first[1] not in shapes:
        return None
    if first[2] is not None:
        dims = [i for i, index in enumerate(first[2].split(",")) if index.strip() != "None"]
    elif "embedding" in op:
        dims = [0]
    elif first[3] is not None:
        dims = [int(first[3])]
    else:
        return None
    return _sizes(shapes[first[1]], dims)


def _flush(path):
    kernels, _state.kernels = _state.kernels, []
    for name, sources in kernels:
        _write(name, path, [], sources, "compile")


def _write(name, path, lines, sources, how):
    global _count
    with _lock:
        _count += 1
        if _count > KERNELS:
            return
    shim.append("kernels", {"kernel": name, "generated": path, "lines": lines, "sources": _ranked(sources),
                            "from": how})
