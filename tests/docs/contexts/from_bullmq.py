from taskbull import App

app = App("page")


@app.task
def send_email(to: str, subject: str) -> None: ...


queue = app.sync_queue("default")
