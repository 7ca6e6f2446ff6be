# Writes a tar with this machine's Python and what it needs to run: the smallest image that a case can run in.
import glob, os, subprocess, sys, sysconfig, tarfile
names = set()
def libraries(path):
    done = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for word in done.stdout.split():
        if word.startswith("/") and os.path.exists(word):
            yield word
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    def add(path, name=None):
        name = (name or path).lstrip("/")
        if name not in names:
            # Every folder stands in the archive: those that it leaves out get modes of the engine's own.
            above = name.split("/")[:-1]
            for folder in ("/".join(above[: n + 1]) for n in range(len(above))):
                if folder not in names:
                    names.add(folder)
                    entry = tarfile.TarInfo(folder)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(entry)
            names.add(name)
            tar.add(os.path.realpath(path), name, recursive=False)
    python = os.path.realpath(sys.executable)
    stdlib = sysconfig.get_paths()["stdlib"]
    add(python); add(python, "/usr/bin/python3")
    found = set(libraries(python))
    # The launch recorder needs it, as every library of Rust's does.
    found.update(glob.glob("/lib/*/libgcc_s.so.1") or glob.glob("/usr/lib*/libgcc_s.so.1"))
    for folder, folders, files in os.walk(stdlib):
        folders[:] = [f for f in folders if f not in ("__pycache__", "test", "dist-packages", "site-packages", "idlelib", "tkinter", "ensurepip")]
        for name in files:
            path = os.path.join(folder, name)
            add(path)
            if name.endswith(".so"):
                found.update(libraries(path))
    for path in sorted(found):
        add(path)
