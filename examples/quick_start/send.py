"""Send jobs and wait for their results: `python send.py`. See tasks.py."""

from __future__ import annotations

from tasks import app, charge, greet, resize

job = greet.delay("Ann", loud=True)
print(f"job {job.id} is in queue {job.queue}")
print(job.result(timeout=30))

later = greet.options(delay=1).delay("Bob")
print(f"job {later.id} is {later.state()}")

pictures = app.enqueue([resize.job(f"{n}.jpg", width=n * 100) for n in range(1, 4)])
print([picture.result(timeout=30) for picture in pictures])

print(charge.delay(42).result(timeout=30))
print(later.result(timeout=30))
