"""Batch tasks for processes, which the tests add to their module."""

BATCHES = """
from taskbull import current_batch, from_lifespan

app.queue_options("models", concurrency=12)

@app.lifespan(process=True)
async def load_model():
    yield {"loaded by": os.getpid(), "bias": 100}

@app.middleware
def layer(job, call_next):
    note("layer-" + job.id)
    return call_next(job)

@app.batch_task(size=4, wait=60, queue="models", process=True)
def square(numbers: list[int], model: dict = from_lifespan()) -> list[list[int]]:
    assert model["loaded by"] == os.getpid()
    return [[os.getpid(), len(numbers), n * n + model["bias"]] for n in numbers]

def complaint():
    try:
        current_job()
    except Exception as error:
        return str(error)

@app.batch_task(size=3, wait=60, queue="models", process=True)
def describe_batch(words: list[str]) -> list[list]:
    jobs = current_batch()
    for job, word in zip(jobs, words):
        job.progress({"word": word})
        job.log("first " + word)
        job.log("second " + word)
    jobs[1].update_data({"changed": True})
    return [[job.id, job.data["words"], job.attempt, complaint()] for job in jobs]

RETURNED = {
    "well": lambda: "well",
    "nothing": lambda: None,
    "object": lambda: object(),
    "long": lambda: "x" * 10_000_000,
    **RAISED,
}

@app.batch_task(size=11, wait=60, queue="models", process=True, attempts=3,
                error_backoffs={Own: Backoff.fixed(77)}, backoff=Backoff.fixed(30),
                classify=classify)
def give_each(words: list[str]) -> list[object]:
    return [RETURNED[word]() for word in words]

@app.batch_task(size=2, wait=60, queue="models", process=True, backoff=Backoff.fixed(30))
def raise_for_all(words: list[str]) -> list[str]:
    raise RAISED[words[0]]()

@app.batch_task(size=2, wait=60, queue="models", process=True, attempts=5)
def too_few(words: list[str]) -> list[str]:
    return words[:1] if words[0] == "list" else "ab"

@app.batch_task(size=2, wait=60, queue="models", process=True, grace=2)
def act(words: list[str]) -> list[str]:
    note(f"acts-{os.getpid()}")
    for word in words:
        globals()[word]()
    return words

def nothing():
    pass

def late():
    try:
        note("late")
        time.sleep(600)
    except SystemExit:
        pass

def watch_others():
    note("watches")
    while not current_batch()[1].cancelled:
        time.sleep(0.01)
    note("saw", repr([job.cancelled for job in current_batch()]))

def watch_locks():
    note("watches")
    while not any(job.lost for job in current_batch()):
        time.sleep(0.01)
    note("saw", repr([job.lost for job in current_batch()]))

@app.batch_task(size=2, wait=60, parallel=2, queue="models", process=True)
def see_cancelled(words: list[str]) -> list[list]:
    if words[0] == "hold":
        note("holds-the-process")
        wait_for_file()
    seen = [job.cancelled for job in current_batch()]
    return [[word, seen] for word in words]

def exit():
    os._exit(3)

def tidy_batch():
    try:
        note("tidies")
        time.sleep(600)
    finally:
        for job in current_batch():
            job.log("cleaned up")
        note("tidied")

def told_each():
    try:
        note("told_each")
        time.sleep(600)
    finally:
        note("told", repr([job.cancelled for job in current_batch()]))

def wait_for_file():
    while not (HERE / "open").exists():
        time.sleep(0.01)

@app.batch_task(size=3, wait=60, queue="models", process=True, attempts=2,
                backoff=Backoff.fixed(0.01))
def poisoned(words: list[str]) -> list[int]:
    if "poison" in words:
        os._exit(7)
    return [len(words) for _ in words]

@app.batch_task(size=1, wait=60, parallel=2, queue="models", process=True)
def two_at_once(words: list[str]) -> list[int]:
    if words == ["hold"]:
        note("holds")
        wait_for_file()
    return [os.getpid()]
"""
