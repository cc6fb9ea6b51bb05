"""Tasks that the tests run in processes: each test writes them to its own module."""

TASKS = '''
import ctypes, logging, os, re, signal, subprocess, sys, time
from pathlib import Path
from taskbull import (App, Backoff, PermanentError, RateLimited, Retry, Snooze, TransientError,
                      WaitForChildren, current_job, from_children)

HERE = Path(__file__).parent
app = App("pool", redis={url!r}, prefix={prefix!r}, attempts=1)

def note(name, text=""):
    """Leave word in a file, complete as soon as it is there."""
    (HERE / (name + ".tmp")).write_text(text)
    (HERE / (name + ".tmp")).rename(HERE / name)

@app.task(process=True)
def who(n: int = 0) -> list[int]:
    return [os.getpid(), n]

@app.task(process=True)
def gpu(wait: str = "") -> str:
    note(wait + os.environ["GPU"])
    while wait and not (HERE / "go").exists():
        time.sleep(0.01)
    return os.environ["GPU"] + os.environ["OTHER"]

@app.task(process=True, throws=(KeyError,))
def expected(to: str = "ann") -> None:
    raise KeyError("no such card for " + current_job().headers["tenant"])

@app.task
def who_in_thread() -> int:
    return os.getpid()

@app.task(process=True, attempts=4)
def describe(x: int) -> dict:
    job = current_job()
    return dict(id=job.id, name=job.name, queue=job.queue, attempt=job.attempt,
                attempts=job.attempts, data=job.data, worker_id=job.worker_id,
                timestamp=job.timestamp, pid=os.getpid(), x=x)

@app.task(process=True)
def write_things() -> str:
    job = current_job()
    job.progress({{"step": 1}})
    job.log("first")
    job.log("second")
    job.update_data({{"changed": True}})
    return "written"

class Own(Exception):
    pass

class Deep(Own):
    pass

def _caused_by(error, cause):
    error.__cause__ = cause
    return error

RAISED = {{
    "retry": lambda: Retry(after=50),
    "retry_from": lambda: _caused_by(Retry(after=50), KeyError("busy")),
    "snooze": lambda: Snooze(60),
    "limited": lambda: RateLimited(0.05),
    "permanent": lambda: PermanentError("no such card"),
    "transient": lambda: TransientError("busy"),
    "key": lambda: KeyError("customer"),
    "deep": lambda: Deep("by its base class"),
    "classified": lambda: LookupError("hopeless"),
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt(),
    "group": lambda: ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
}}

def classify(error):
    return "permanent" if type(error) is LookupError else None

@app.task(process=True, attempts=2, error_backoffs={{Own: Backoff.fixed(77)}},
          backoff=Backoff.fixed(30), classify=classify)
def raise_it(what: str) -> str:
    if what == "limited" and current_job().job.attempts_started > 1:
        return "done"
    raise RAISED[what]()

@app.task(process=True)
def talk(lines: int = 1) -> None:
    logging.getLogger("shop.talk").warning("sold %s", "shoes", extra={{"colour": "red"}})
    for n in range(lines):
        print("line", n)
    sys.stderr.write("trouble without an end")

@app.task(process=True)
def enqueue_more() -> str:
    return who_in_thread.delay().id

@app.task(process=True, attempts=2)
def parent(results: list[list[int]] = from_children(who)) -> list[int]:
    return [n for _, n in results]

@app.task(process=True)
def spawning() -> list[int]:
    job = current_job()
    found = job.children(who)
    if not found:
        job.spawn([who.job(1), who.job(2)])
        raise WaitForChildren()
    return [n for _, n in found]

@app.task(process=True)
def give(what: str) -> object:
    if what == "object":
        return object()
    if what == "nan":
        return float("nan")
    return "x" * 100_000_000

@app.task(process=True)
def crash(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "orphans":
        program = [sys.executable, "-c", "import time; time.sleep(600)"]
        note("orphans", " ".join(str(subprocess.Popen(program).pid) for _ in range(2)))
        os._exit(4)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "close":
        os.closerange(3, 64)
    elif how == "reopen":
        os.closerange(3, 64)
        kept = [open(HERE / f"file{{n}}", "wb") for n in range(40)]
    elif how == "garbage":
        for fd in range(3, 64):
            try:
                os.write(fd, b"GARBAGE-" * 4)
            except OSError:
                pass
        time.sleep(60)
    elif how == "torn":
        for fd in range(3, 64):
            try:
                os.write(fd, b"tbp1" + bytes([0, 0, 1, 0]) + b"the first half")
            except OSError:
                pass
        os._exit(5)

def spin():
    while True:
        pass

def sleep():
    time.sleep(600)

def regex():
    re.match(r"(a+)+$", "a" * 60 + "b")  # holds the GIL for ages

def gil():
    """Sleep in C code that holds the GIL and that no signal wakes, but for SIGKILL."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(600)

def bomb():
    for _ in range(5):
        os.fork()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(f"bomb-{{os.getpid()}}")
    time.sleep(600)

def power():
    return 7 ** (7 ** 11) > 3

def babble():
    while True:
        try:
            while True:
                print("x" * 100)
        except SystemExit:
            pass

def stubborn():
    while True:
        try:
            time.sleep(600)
        except BaseException:
            note("ignored")

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("deaf")
    time.sleep(600)

def tidy():
    try:
        time.sleep(600)
    finally:
        current_job().log("cleaned up")
        note("tidied")

def quick():
    try:
        time.sleep(600)
    except SystemExit:
        return "just in time"

def told():
    seen = [current_job().cancelled]
    try:
        time.sleep(600)
    finally:
        seen.append(current_job().cancelled)
        note("told", repr(seen))

def watch_lock():
    while not current_job().lost:
        time.sleep(0.01)
    note("lost")

def heeding():
    try:
        time.sleep(600)
    except SystemExit:
        return current_job().cancelled

def children():
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(600)
        pids.append(pid)
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note("children", " ".join(map(str, [*pids, program.pid])))
    time.sleep(600)

@app.task(process=True, timeout=0.5, grace=0.5)
def hang(how: str) -> str | None:
    return globals()[how]()

@app.task(process=True, grace=0.5)
def stay(how: str = "sleep") -> str | None:
    note(f"stays-{{os.getpid()}}")
    return globals()[how]()

@app.task(process=True, grace=600)
def linger(how: str) -> str | None:
    note(f"stays-{{os.getpid()}}")
    return globals()[how]()

@app.task(process=True)
def hold(until: str) -> int:
    note("holds-" + until, str(os.getpid()))
    while not (HERE / until).exists():
        time.sleep(0.01)
    return os.getpid()

@app.task(process=True)
def fork(how: str) -> int:
    pid = os.fork()
    if pid == 0:
        if how == "raise":
            raise ValueError("in the child")
        return 1
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@app.task(process=True)
def eat(megabytes: int) -> list[int]:
    held = bytearray(megabytes << 20)
    return [os.getpid(), len(held)]

hoard = []

@app.task(process=True)
def keep(megabytes: int) -> int:
    hoard.append(b"x" * (megabytes << 20))
    return os.getpid()
'''
