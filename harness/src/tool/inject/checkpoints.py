"""Waits for the device after each line of the program's own files; the first wait that fails names the line.

Lines come from sys.monitoring where there is one (Python 3.12), else from sys.settrace.
"""
import atexit
import sys
import threading

import faultlab_inject as inject
import faultlab_layers as layers
import torch

own = layers.own


class Checkpoints:
    def __init__(self):
        self.off = False
        self.waits = 0
        self.local = threading.local()

    def passed(self, frame, event, line=0):
        """An own line, call or return: whatever the device did since the last wait belongs to the line before."""
        if self.off:
            return
        local = self.local
        before = getattr(local, "at", None)  # (code, line); code objects hold no tensors
        try:
            if layers.on_gpu() and not torch.cuda.is_current_stream_capturing():
                self.waits += 1
                torch.cuda.synchronize()
        except Exception as error:
            self.failed(frame, event, before, error)
            return
        if event == "return":
            caller = frame.f_back
            while caller is not None and not own(caller.f_code.co_filename):
                caller = caller.f_back
            local.at = caller and (caller.f_code, caller.f_lineno)
        else:
            local.at = (frame.f_code, line or frame.f_lineno)

    def failed(self, frame, event, before, error):
        self.off = True
        if event == "call":  # the line that calls: its arguments' work
            frame = frame.f_back
        chain = layers.stack(frame)
        if event == "line" and chain and before is not None and before[0] is frame.f_code:
            chain[0] = (chain[0][0], before[1], chain[0][2])
        first = str(error).split("\n")[0]
        inject.report(
            f"the device failed in this line, or in what it started; all before had completed ({self.waits} waits): {first}",
            layers.said(chain), error_type=type(error).__name__,
        )

    def stop(self):
        """At the interpreter's end: what runs then runs without modules."""
        self.off = True

    def ended(self, error, traceback):
        """The program ends in an error that no wait has shown."""
        if self.off or traceback is None:
            return
        self.off = True
        first = str(error).split("\n")[0]
        frames = inject.traceback_frames(traceback)
        kind = type(error).__name__
        if layers.is_cuda_error(error):
            inject.report(f"the device failed inside this line; all before had completed: {first}", frames, error_type=kind)
        else:
            # The device had nothing left to do: an operation that refuses its arguments does so at its own line. What
            # the program raises itself is a check of its own, and says nothing about where the bad value was made.
            note = layers.raised_by_program(traceback) or not isinstance(error, Exception)
            inject.report(f"raised on the host, at its own line; all before had completed: {kind}: {first}", frames,
                          error_type=kind, note=note)


def frames_of_program():
    frame = sys._getframe(1)
    while frame is not None:
        if own(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def monitor(points):
    """Python 3.12 and later: only the program's own code is slowed down."""
    monitoring, events = sys.monitoring, sys.monitoring.events
    tool = next(n for n in (4, 3, 2) if monitoring.get_tool(n) is None)
    monitoring.use_tool_id(tool, "faultlab checkpoints")
    local = events.LINE | events.PY_RETURN | events.PY_YIELD | events.PY_RESUME

    def stopped(code):
        """True once there is nothing left to watch."""
        if points.off:
            monitoring.set_local_events(tool, code, 0)
        return points.off

    def start(code, offset):
        if not own(code.co_filename):
            return monitoring.DISABLE
        if not stopped(code):
            monitoring.set_local_events(tool, code, local)
            points.passed(sys._getframe(1), "call")

    def line(code, number):
        if not stopped(code):
            points.passed(sys._getframe(1), "line", number)

    def leave(code, offset, value):
        if not stopped(code):
            points.passed(sys._getframe(1), "return")

    def resume(code, offset):
        if not stopped(code):
            points.passed(sys._getframe(1), "call")

    monitoring.register_callback(tool, events.PY_START, start)
    monitoring.register_callback(tool, events.LINE, line)
    monitoring.register_callback(tool, events.PY_RETURN, leave)
    monitoring.register_callback(tool, events.PY_YIELD, leave)
    monitoring.register_callback(tool, events.PY_RESUME, resume)
    monitoring.set_events(tool, events.PY_START)
    for frame in frames_of_program():
        monitoring.set_local_events(tool, frame.f_code, local)
    atexit.register(monitoring.set_events, tool, 0)
    return "sys.monitoring"


def trace(points):
    """Before 3.12: every call is seen, and only the program's own frames are followed."""

    def inside(frame, event, _):
        if points.off:
            return None
        if event in ("line", "return"):
            points.passed(frame, event)
        return inside

    def entered(frame, event, _):
        if points.off or not own(frame.f_code.co_filename):
            return None
        points.passed(frame, "call")
        return inside

    for frame in frames_of_program():
        frame.f_trace = inside
    threading.settrace(entered)
    sys.settrace(entered)
    atexit.register(sys.settrace, None)
    return "sys.settrace"


def activate(torch):
    points = Checkpoints()
    atexit.register(points.stop)
    how = monitor(points) if hasattr(sys, "monitoring") else trace(points)
    hook = sys.excepthook

    def excepthook(kind, error, traceback):
        try:
            points.ended(error, traceback)
        except Exception:
            pass  # never in the program's way
        hook(kind, error, traceback)

    sys.excepthook = excepthook
    return f"waits after each line of the program, by {how}"
