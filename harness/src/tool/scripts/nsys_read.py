"""nsys_read.py NSYS: what report.nsys-rep in the working folder says about the end of a program, as lines of JSON.

Where nsys left only report.qdstrm (its importer did not start), the importer is called once more.
"""
import glob
import json
import os
import sqlite3
import subprocess
import sys

# The errors after which a CUDA context is dead (CUDA runtime API, cudaError_t; the driver's numbers are the same).
FATAL = {
    214: "cudaErrorECCUncorrectable", 219: "cudaErrorInvalidGraphicsContext", 220: "cudaErrorNvlinkUncorrectable",
    700: "cudaErrorIllegalAddress", 702: "cudaErrorLaunchTimeout", 710: "cudaErrorAssert",
    714: "cudaErrorHardwareStackError", 715: "cudaErrorIllegalInstruction", 716: "cudaErrorMisalignedAddress",
    717: "cudaErrorInvalidAddressSpace", 718: "cudaErrorInvalidPc", 719: "cudaErrorLaunchFailure",
}
LAST = 8  # kernels that are shown
LAUNCHES = 64


def say(kind, **more):
    print(json.dumps({"kind": kind, **more}), flush=True)


def trouble(message):
    say("trouble", message=message)
    sys.exit(0)


def output(argv):
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=150)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout.decode(errors="replace")[-2000:].strip()


def last_line(text):
    return (text.replace("\r", "\n").strip().splitlines() or [""])[-1].strip()


def importers(nsys):
    """Beside the collector: ../host-linux-x64 of Nsight Systems, ../linux-desktop-* of the copy in Nsight Compute."""
    folder = os.path.dirname(os.path.realpath(nsys))
    found = []
    for pattern in ("../*/QdstrmImporter", "QdstrmImporter", "../../*/QdstrmImporter"):
        found += sorted(glob.glob(os.path.join(folder, pattern)))
    return found


def bring_report(nsys):
    if os.path.exists("report.nsys-rep"):
        return
    if not os.path.exists("report.qdstrm"):
        trouble("nsys left neither report.nsys-rep nor report.qdstrm")
    found = importers(nsys)
    if not found:
        trouble(f"nsys left report.qdstrm, and there is no QdstrmImporter near {nsys} to import it")
    code, text = output([found[0], "-i", "report.qdstrm", "-o", "report.nsys-rep"])
    if not os.path.exists("report.nsys-rep"):
        trouble(
            f"{found[0]} could not import report.qdstrm ({last_line(text) or code}); it needs libdw1 and libelf1: install "
            "them, or unpack them and name their folder in LD_LIBRARY_PATH"
        )
    # It can be gigabytes.
    os.remove("report.qdstrm")


def rows(db, query, *arguments):
    try:
        return db.execute(query, arguments).fetchall()
    except sqlite3.OperationalError:
        return []  # a table or column that this report does not have


def ranges(db):
    """(start, end, thread, text) of NVTX push/pop and start/end ranges."""
    return rows(
        db,
        "select n.start, n.end, n.globalTid, coalesce(n.text, s.value) from NVTX_EVENTS n left join StringIds s on s.id = n.textId"
        " where n.end is not null or n.eventType in (59, 60)",
    )


def around(nvtx, start, thread):
    """The ranges of the thread that a moment lies in, outermost first. A range that never ended lasts to the end."""
    found = [(s, text) for s, end, tid, text in nvtx if text and tid == thread and s <= start and (end is None or start <= end)]
    return [text for _, text in sorted(found)]


def plain(name):
    """cudaLaunchKernel_v7000 is cudaLaunchKernel."""
    head, _, tail = name.rpartition("_v")
    return head if head and tail.isdigit() else name


def read(path):
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    calls = rows(
        db,
        "select r.start, r.end, r.globalTid, r.correlationId, s.value, r.returnValue from CUPTI_ACTIVITY_KIND_RUNTIME r"
        " join StringIds s on s.id = r.nameId order by r.start",
    )
    calls = [(start, end, tid, correlation, plain(name), code) for start, end, tid, correlation, name, code in calls]
    kernels = rows(
        db,
        "select k.start, k.end, k.streamId, k.correlationId, s.value from CUPTI_ACTIVITY_KIND_KERNEL k"
        " join StringIds s on s.id = k.demangledName order by k.start",
    )
    nvtx = ranges(db)
    version = rows(db, "select value from META_DATA_EXPORT where name = 'EXPORT_PRODUCT_VERSION'")
    dropped = rows(db, "select text from DIAGNOSTIC_EVENT where text like '%incomplete CUPTI events dropped%'")
    say(
        "report", version=version[0][0] if version else None, calls=len(calls), kernels=len(kernels),
        ranges=len(nvtx), dropped=dropped[0][0].split(". ")[0].replace("\t", "") if dropped else None,
    )
    by_correlation = {call[3]: call for call in calls}
    for start, end, stream, correlation, name in kernels[-LAST:]:
        call = by_correlation.get(correlation)
        say(
            "kernel", name=name, stream=stream, start=start, end=end, api=call[4] if call else None,
            nvtx=around(nvtx, call[0], call[2]) if call else [],
        )
    others = [call for call in calls if call[5] and call[5] not in FATAL]
    for start, _, _, _, name, code in others[-LAST:]:
        say("call", api=name, code=code, start=start)
    fatal = [call for call in calls if call[5] in FATAL]
    if not fatal:
        return
    first = fatal[0]
    finished = {kernel[3] for kernel in kernels}
    waited = [c for c in calls if c[5] == 0 and c[4].endswith("Synchronize") and "Event" not in c[4] and c[1] <= first[1]]
    since = waited[-1][1] if waited else 0
    launches = [
        {"api": c[4], "start": c[0], "nvtx": around(nvtx, c[0], c[2])}
        for c in calls
        if "Launch" in c[4] and "Kernel" in c[4] and c[3] not in finished and since <= c[0] <= first[1]
    ]
    say(
        "fault", api=first[4], code=first[5], name=FATAL[first[5]], start=first[0], nvtx=around(nvtx, first[0], first[2]),
        unfinished=len(launches), launches=launches[:LAUNCHES],
    )


def main():
    nsys = sys.argv[1]
    bring_report(nsys)
    code, text = output([nsys, "export", "--type=sqlite", "--force-overwrite=true", "--output=report.sqlite", "report.nsys-rep"])
    if not os.path.exists("report.sqlite"):
        trouble(f"nsys export failed ({last_line(text) or code})")
    read("report.sqlite")


if __name__ == "__main__":
    main()
