from functools import partial

import anyio

from taskbull import App

if "earlier" not in globals():
    earlier = App("page")

    @earlier.task(attempts=1)
    def fulfil(order: str) -> None:
        raise ValueError(order)

    earlier.enqueue([fulfil.job(str(number)) for number in range(42)])
    anyio.run(partial(earlier.worker().run, burst=True))
