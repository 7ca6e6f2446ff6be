"""torch.cuda.set_sync_debug_mode("warn") for the whole program. Each line at which the host waits is noted once, with
its stack; the warnings themselves are not printed."""
import os
import warnings

import faultlab_inject as faultlab

WAITS = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype feature"
MOST = 100  # lines that are noted
noted = set()


def note():
    stack = [f for f in faultlab.frames() if os.path.basename(f["file"]) != "warnings.py"]
    own = [f for f in stack if not os.path.dirname(f["file"]).startswith(PACKAGE)]
    place = tuple((f["file"], f["line"]) for f in own[-1:])
    if place in noted or len(noted) >= MOST:
        return
    noted.add(place)
    faultlab.report("the host waits for the GPU here, so that an earlier error can surface", python=stack, note=True)


def ours(message):
    text = str(message)
    if WAITS in text:
        try:
            note()
        except Exception:  # a note that fails must not fail the program
            pass
        return True
    return PROTOTYPE in text


def activate(torch):
    global PACKAGE
    PACKAGE = os.path.dirname(torch.__file__)
    # Each line once in `noted`, not once as the filters of the program may have it.
    warnings.filterwarnings("always", message=WAITS)
    if hasattr(warnings, "_showwarnmsg"):  # keeps all of a warning, and is not undone by catch_warnings
        show = warnings._showwarnmsg
        warnings._showwarnmsg = lambda msg: None if ours(msg.message) else show(msg)
    else:
        shown = warnings.showwarning

        def showwarning(message, *args, **kwargs):
            if not ours(message):
                shown(message, *args, **kwargs)

        warnings.showwarning = showwarning

    def apply():
        # Not torch.cuda.set_sync_debug_mode: it would initialise CUDA, which a program that forks must do later.
        try:
            torch._C._cuda_set_sync_debug_mode(1)
            mode = torch._C._cuda_get_sync_debug_mode()
            detail = f"torch.cuda's sync debug mode is {mode}"
        except Exception as error:
            detail = f"the mode could not be set: {error}"
        faultlab.write("active.jsonl", {"pid": os.getpid(), "torch": torch.__version__, "detail": detail})

    torch.cuda._lazy_call(apply)
    return "waiting for CUDA to be initialised"
