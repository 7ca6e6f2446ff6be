"""torch.profiler around the whole program, with Python stacks. Written when the program ends in an error: the last
kernels that have an end on record, and the last operations and launches with the Python lines that called them.
"""
import atexit
import os
import sys

import faultlab_inject as faultlab

LAST = 12


def activate(torch):
    from torch.autograd import profiler

    package = os.path.dirname(torch.__file__) + os.sep
    blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    # torch.profiler.profile would export a trace of everything; the summary needs less.
    device = "cuda" if torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities() else None
    profile = profiler.profile(with_stack=True, use_device=device)
    profile.__enter__()
    ended = []

    def full(name):
        """Kineto cuts the folders of sys.path off its file names."""
        if os.path.isabs(name):
            return name
        places = (os.path.join(folder or os.curdir, name) for folder in sys.path)
        return next((os.path.abspath(place) for place in places if os.path.exists(place)), name)

    def own(name):
        return not name.startswith((package, faultlab.HERE, "<")) and os.path.exists(name)

    def read(node):
        """An event's kind, name and fields; some names of Python events are no text (torch 2.11), and are passed over."""
        try:
            kind, fields = node.typed
            return str(kind), node.name, fields
        except UnicodeDecodeError:
            return "", "", None

    def place(node):
        """The innermost line outside torch that led to the event, and whether it is only a function's first line."""
        inner = True
        node = node.parent
        while node is not None:
            kind, _, fields = read(node)
            if kind.endswith(("PyCall", "PyCCall")):
                site = getattr(fields, "callsite", None)
                if inner and site is not None and own(full(site.file_name)):
                    # An operator (a @ b) is no call that the profiler sees: it knows the function, not the line.
                    return (full(site.file_name), site.line_number, site.function_name), True
                inner = False
                file = full(fields.caller.file_name)
                if own(file):
                    return (file, fields.caller.line_number, fields.caller.function_name), False
            node = node.parent
        return None, False

    def finish():
        try:
            write()
        except Exception as error:
            faultlab.report(f"the profile could not be read: {type(error).__name__}: {error}", note=True)

    def write():
        lost = None
        try:
            if torch.cuda._initialized:
                torch.cuda.synchronize()  # as the profiler's own end does
        except Exception as error:
            lost = str(error).split("\n", 1)[0]
        results = torch.autograd._disable_profiler()
        getattr(profiler, "_run_on_profiler_stop", lambda: None)()
        kernels = [e for e in results.events() if str(e.device_type()).endswith("CUDA")]
        started, count, launched, stack = [], 0, 0, list(results.experimental_event_tree())
        while stack:
            node = stack.pop()
            stack.extend(node.children)
            kind, name, _ = read(node)
            launch = "LaunchKernel" in name
            if kind.endswith("TorchOp") or launch:
                count += 1
                launched += launch
                started.append((node.start_time_ns, launch, node))
        faultlab.write("active.jsonl", {
            "pid": os.getpid(), "torch": torch.__version__,
            "detail": f"{count - launched} operations, {launched} launches and {len(kernels)} GPU activities on record"})
        if not ended:
            return
        kind, text = ended[0]
        if lost:
            faultlab.report(f"the CUDA context is dead ({lost}): activities that were not yet delivered are lost", note=True)
        kernels.sort(key=lambda e: e.start_ns())
        for event in kernels[-3:][::-1]:
            faultlab.report(f"the GPU finished {event.name()}", note=True)
        done = {e.correlation_id() for e in kernels}
        started.sort(key=lambda s: s[0])
        claim = blocking and (kind.endswith("AcceleratorError") or "CUDA error" in text or "CUBLAS_STATUS" in text)
        for at, (_, launch, node) in enumerate(started[-LAST:][::-1]):
            where, first = place(node)
            line = [] if where is None else [{"file": where[0], "line": where[1], "function": where[2]}]
            words = node.name
            if launch:
                words += ", its end is on record" if node.correlation_id in done else ", no end on record"
            if first:
                words += " (somewhere in this function: an operator has no line)"
            if at == 0 and claim and line and not first:
                # Each launch was waited for, so what was started last is what failed.
                faultlab.report(f"started last: {words}", python=line, module=node.name)
            else:
                faultlab.report(f"started {at + 1} from the end: {words}", python=line, module=node.name, note=True)

    hook = sys.excepthook

    def excepthook(kind, error, traceback):
        ended.append((kind.__qualname__, str(error)))
        hook(kind, error, traceback)

    sys.excepthook = excepthook
    atexit.register(finish)
    return f"the profiler runs, with {'CUDA' if device else 'CPU'} activities"
