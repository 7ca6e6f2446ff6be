# The first process of a case's container. It brings the tool's files, runs the case and then the commands that read
# what the case left, and sends everything through its standard output, in frames: kind, length, bytes.
#
# As process 1 it adopts every orphan, cannot be killed from inside, and takes the container with it when it ends. Its
# standard input closes when faultlab dies of anything; then it ends. It needs nothing but a bare Python 3.
import json, os, select, signal, struct, sys, time

GRACE = 0.5
KILL_LIMIT = 20


def send(kind, data=b""):
    rest = memoryview(kind + struct.pack(">I", len(data)) + data)
    while rest:
        rest = rest[os.write(1, rest):]


def send_json(kind, value):
    send(kind, json.dumps(value).encode())


def read_order():
    data = b""
    while not data.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            os._exit(0)
        data += chunk
    return json.loads(data)


def others():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    return text or f"process {pid}"


def oom_kills():
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except OSError:
            pass
    return 0


class Run:
    def __init__(self, argv, env, work):
        out, err, self.failed = os.pipe(), os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                # Python ignores these; a program expects the defaults.
                for name in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(name, signal.SIG_DFL)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out[1], 1)
                os.dup2(err[1], 2)
                os.chdir(work)
                os.execvpe(argv[0], argv, env)
            except BaseException as error:
                os.write(self.failed[1], str(error).encode())
            os._exit(127)
        for pipe in (out, err, self.failed):
            os.close(pipe[1])
        self.streams = {out[0]: b"o", err[0]: b"e"}
        self.rss = 0
        self.status = None
        self.empty = False

    def not_started(self):
        text = b""
        while chunk := os.read(self.failed[0], 4096):
            text += chunk
        os.close(self.failed[0])
        return text.decode(errors="replace")

    def environ(self, wanted):
        try:
            with open(f"/proc/{self.pid}/environ", "rb") as file:
                pairs = file.read().decode(errors="surrogateescape").split("\0")
        except OSError:
            return {}
        seen = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        return {key: value for key, value in seen.items() if key in wanted}

    def turn(self, seconds):
        """Passes on what was written, and collects who has ended. False: faultlab is gone."""
        ready, _, _ = select.select([0, *self.streams], [], [], seconds)
        for stream in ready:
            if stream == 0:
                return bool(os.read(0, 4096))
            chunk = os.read(stream, 1 << 16)
            if chunk:
                send(self.streams[stream], chunk)
            else:
                os.close(stream)
                del self.streams[stream]
        try:
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    self.empty = False
                    break
                self.rss = max(self.rss, usage.ru_maxrss * 1024)
                if pid == self.pid:
                    self.status = status
        except ChildProcessError:
            self.empty = True
        return True


def outcome(status):
    code = os.waitstatus_to_exitcode(status)
    return {"code": code} if code >= 0 else {"signal": signal.Signals(-code).name}


def run(order, command):
    account = {
        "not_started": None, "exit": {"code": 0}, "stopped": False, "elapsed_s": 0.0, "peak_rss_bytes": None,
        "left_behind": [], "unkillable": [], "env_seen": {},
    }
    kills, started = oom_kills(), time.monotonic()
    case = Run(command["argv"], order["env"], order["work"])
    why = case.not_started()
    if why:
        os.waitpid(case.pid, 0)
        account["not_started"] = f"failed to start {command['argv'][0]}: {why}"
        return account
    account["env_seen"] = case.environ(order["watch_env"])
    deadline = started + command["deadline_s"]
    while case.status is None and time.monotonic() < deadline:
        if not case.turn(0.005):
            os._exit(0)
    account["elapsed_s"] = time.monotonic() - started
    account["exit"] = "deadline" if case.status is None else outcome(case.status)
    if case.status is not None:
        grace = time.monotonic() + GRACE
        while not case.empty and time.monotonic() < grace:
            case.turn(0.005)
        if not case.empty:
            account["left_behind"] = [line for line in map(command_line, others()) if line]
    limit = time.monotonic() + KILL_LIMIT
    while not case.empty and time.monotonic() < limit:
        # All but this process; again, until none is left that could have forked meanwhile.
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        case.turn(0.005)
    if not case.empty:
        account["unkillable"] = [line for line in map(command_line, others()) if line]
    # Nobody writes any more: what is in the pipes is all.
    while case.streams and case.empty:
        case.turn(0.005)
    account["peak_rss_bytes"] = case.rss or None
    account["oom_kills"] = oom_kills() - kills
    return account


def main():
    # Killing everything else is right only where there is nothing but the case.
    if os.getpid() != 1:
        raise RuntimeError("it is not process 1 of the container")
    order = read_order()
    os.chdir(order["work"])
    if order["gpu"] and not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):
        send(b"G")
        return
    for name, text in order["files"]:
        os.makedirs(os.path.dirname(os.path.abspath(name)), exist_ok=True)
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    for index, command in enumerate(order["commands"]):
        if command["only_if"] and not os.path.exists(command["only_if"]):
            continue
        send_json(b"S", index)
        send_json(b"A", run(order, command))
    for index, name in enumerate(order["collect"]):
        try:
            file = open(name, "rb")
        except OSError:
            continue
        send_json(b"N", index)
        while chunk := file.read(1 << 16):
            send(b"F", chunk)
        file.close()
    send(b"Z")


try:
    main()
except BaseException as error:
    send_json(b"X", f"{type(error).__name__}: {error}")
# faultlab ends the container, or is gone.
while os.read(0, 4096):
    pass
