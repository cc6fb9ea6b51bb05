from taskbull import App, WaitForChildren, current_job

other = App("page")


@other.task(queue="trees")
def leaf() -> None: ...


@other.task(queue="trees")
def thumbnail(path: str) -> str:
    return path


other.enqueue([leaf.job() for _ in range(7)])
queue = other.queue("trees")


def find(folder: str) -> list[str]:
    return [folder]
