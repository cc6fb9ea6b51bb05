from taskbull import App, Queue

app = App("page")


@app.task(queue="emails")
def send_email() -> None: ...


app.enqueue([send_email.job() for _ in range(42)])


@app.task(queue="letters")
def write_letter() -> None: ...


app.enqueue([write_letter.job() for _ in range(2)])
queue = app.queue("letters")
