"""Runs a program under debugpy, with the conditional breakpoints of the file `breakpoints.json` beside it.

    python breakpoint.py PROGRAM ARGS…        the client: speaks the Debug Adapter Protocol
    python breakpoint.py --debuggee PROGRAM ARGS…        what it starts: debugpy, and in it the program

The first stop at which a condition holds is reported; then the breakpoints are taken away, the debugger leaves, and
the program goes on to its own end, which becomes the client's. Standard streams are the program's own. Files, in
$FAULTLAB_INJECT: active.jsonl, once a breakpoint is verified, and reports.jsonl.
"""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

FILE = "breakpoints.json"
START = 60  # seconds for debugpy to start and to answer
ANSWER = 30  # seconds for an answer while the program stands
PORT = "FAULTLAB_BREAKPOINT_PORT"
FOLDER = os.environ.get("FAULTLAB_INJECT", ".")


def write(name, record):
    with open(os.path.join(FOLDER, name), "a", encoding="utf-8") as file:
        file.write(json.dumps(record, default=str) + "\n")


def report(message, python=(), values=(), note=False):
    write("reports.jsonl", {"pid": os.getpid(), "message": message, "python": list(python), "values": list(values),
                            "error_type": None, "module": None, "note": note})


def debuggee():
    """In the program's own process: debugpy picks a free port, and the program waits for the client."""
    import runpy

    import debugpy

    where = os.environ.pop(PORT)
    _, port = debugpy.listen(("127.0.0.1", 0))
    with open(where + ".new", "w", encoding="ascii") as file:
        file.write(str(port))
    os.rename(where + ".new", where)
    debugpy.wait_for_client()
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


class Gone(Exception):
    """The connection has ended: so has the program, or debugpy."""


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=START)
        self.buffer, self.sent, self.events, self.answers = b"", 0, [], {}

    def send(self, command, **arguments):
        self.sent += 1
        text = json.dumps({"seq": self.sent, "type": "request", "command": command, "arguments": arguments}).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        return self.sent

    def receive(self, timeout):
        """One message into its place; False if none came in time."""
        deadline = time.monotonic() + timeout
        while True:
            head, mark, rest = self.buffer.partition(b"\r\n\r\n")
            if mark:
                length = next(int(l[15:]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length:"))
                if len(rest) >= length:
                    message, self.buffer = json.loads(rest[:length]), rest[length:]
                    if message["type"] == "response":
                        self.answers[message["request_seq"]] = message
                    elif message["type"] == "event":
                        self.events.append(message)
                    return True
            if not select.select([self.socket], [], [], max(0, deadline - time.monotonic()))[0]:
                return False
            try:
                more = self.socket.recv(1 << 16)
            except OSError:
                more = b""
            if not more:
                raise Gone
            self.buffer += more

    def answer(self, request, timeout=ANSWER):
        deadline = time.monotonic() + timeout
        while request not in self.answers:
            if not self.receive(max(0.01, deadline - time.monotonic())) and time.monotonic() >= deadline:
                raise TimeoutError("debugpy did not answer")
        answer = self.answers.pop(request)
        if not answer.get("success"):
            raise RuntimeError(answer.get("message") or "debugpy refused")
        return answer.get("body") or {}

    def ask(self, command, timeout=ANSWER, **arguments):
        return self.answer(self.send(command, **arguments), timeout)

    def event(self, names, timeout):
        """The next of these events; None if none came in time."""
        deadline = time.monotonic() + timeout
        while True:
            for at, event in enumerate(self.events):
                if event["event"] in names:
                    del self.events[: at + 1]
                    return event
            if not self.receive(max(0.01, deadline - time.monotonic())) and time.monotonic() >= deadline:
                return None


def find(entry, program):
    """(file, line) that an entry of the file means."""
    folder = os.path.dirname(os.path.abspath(program))
    path = os.path.join(folder, entry["file"]) if entry.get("file") else os.path.abspath(program)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = [n for n, line in enumerate(text.split("\n"), 1) if line.strip().startswith(entry["line"])]
    function = entry.get("function")
    if function:
        import ast

        spans = [(node.lineno, node.end_lineno) for node in ast.walk(ast.parse(text))
                 if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function]
        found = [n for n in found if any(first <= n <= last for first, last in spans)]
    if len(found) != 1:
        inside = f" in {function}" if function else ""
        raise ValueError(f"{len(found)} lines{inside} of {os.path.basename(path)} begin with {entry['line']!r}: one must")
    return path, found[0]


def load(program):
    path = os.path.join(os.path.dirname(os.path.abspath(program)), FILE)
    with open(path, encoding="utf-8") as file:
        return [(*find(entry, program), entry) for entry in json.load(file)]


def set_all(client, points):
    """Sets them, and returns those that debugpy has verified."""
    verified = []
    for path in sorted({path for path, _, _ in points}):
        here = [(line, entry) for p, line, entry in points if p == path]
        body = client.ask("setBreakpoints", source={"path": path},
                          breakpoints=[{"line": line, "condition": entry["condition"]} for line, entry in here])
        for (line, _), answer in zip(here, body["breakpoints"]):
            if answer.get("verified"):
                verified.append(f"{os.path.basename(path)}:{answer.get('line', line)}")
    return verified


def stopped(client, event, points):
    """Looks around where the program stands. True if a condition really holds."""
    thread = event["body"]["threadId"]
    stack = client.ask("stackTrace", threadId=thread, startFrame=0, levels=100)["stackFrames"]
    top = stack[0]
    here = os.path.abspath((top.get("source") or {}).get("path") or "")

    def evaluate(expression):
        return client.ask("evaluate", expression=expression, frameId=top["id"], context="watch")["result"]

    for path, line, entry in points:
        if (path, line) != (here, top["line"]):
            continue
        frames = [{"file": (f.get("source") or {}).get("path") or "", "line": f["line"],
                   "function": f["name"].rsplit(".", 1)[-1]} for f in reversed(stack)]
        frames = [f for f in frames if os.path.abspath(f["file"]) != os.path.abspath(__file__)]
        try:
            holds = evaluate(f"bool({entry['condition']})") == "True"
        except RuntimeError as error:  # debugpy also stops where a condition cannot be evaluated
            report(f"the condition {entry['condition']} fails: {error}", frames, note=True)
            continue
        if not holds:
            continue
        values = []
        for expression in entry.get("values", []):
            try:
                values.append(f"{expression} = {evaluate(expression)}")
            except RuntimeError as error:
                values.append(f"{expression}: {str(error).strip().splitlines()[-1]}")
        report(f"stopped before this line: {entry['condition']}", frames, values)
        return True
    return False


def debug(child, where, points):
    deadline = time.monotonic() + START
    while not os.path.exists(where):
        if child.poll() is not None or time.monotonic() > deadline:
            report("debugpy did not start in the program's process", note=True)
            return
        time.sleep(0.02)
    with open(where, encoding="ascii") as file:
        client = Client(int(file.read()))
    client.ask("initialize", START, adapterID="debugpy", clientID="faultlab", pathFormat="path", linesStartAt1=True,
               columnsStartAt1=True)
    attach = client.send("attach", justMyCode=True, redirectOutput=False, subProcess=False)
    if client.event({"initialized"}, START) is None:
        raise TimeoutError("debugpy did not get ready")
    verified = set_all(client, points)
    # An error in a condition is no reason to stop at each pass; a raised exception neither.
    client.ask("setExceptionBreakpoints", filters=[])
    client.ask("configurationDone")
    client.answer(attach)
    if verified:
        import debugpy

        write("active.jsonl", {"pid": child.pid, "detail": f"debugpy {debugpy.__version__}: {len(verified)} of "
                               f"{len(points)} breakpoints verified ({', '.join(verified)})"})
    while True:
        event = client.event({"stopped", "terminated", "exited"}, 3600)
        if event is None or event["event"] != "stopped":
            return
        if stopped(client, event, points):
            break
        client.ask("continue", threadId=event["body"]["threadId"])
    for path in sorted({path for path, _, _ in points}):
        client.ask("setBreakpoints", source={"path": path}, breakpoints=[])
    client.ask("disconnect", terminateDebuggee=False)


def main():
    program, args = sys.argv[1], sys.argv[2:]
    points = load(program)
    with tempfile.TemporaryDirectory(prefix="faultlab-") as folder:
        where = os.path.join(folder, "port")
        # Frozen standard modules would make the debugger miss breakpoints, and it warns of them.
        frozen = ["-Xfrozen_modules=off"] if sys.version_info >= (3, 11) else []
        command = [sys.executable, *frozen, os.path.abspath(__file__), "--debuggee", program, *args]
        child = subprocess.Popen(command, env={**os.environ, PORT: where})
        try:
            debug(child, where, points)
        except Gone:
            pass
        except Exception as error:
            report(f"the debugger failed: {type(error).__name__}: {error}", note=True)
            if child.poll() is None and not os.path.exists(os.path.join(FOLDER, "active.jsonl")):
                child.kill()  # it would wait for a debugger for ever
        status = child.wait()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    debuggee() if sys.argv[1] == "--debuggee" else main()
