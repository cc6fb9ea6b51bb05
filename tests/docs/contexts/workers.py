from contextlib import asynccontextmanager

from fastapi import FastAPI

from taskbull import App

app = App("page")

NOT_RUN = {"anyio.run(worker.run)": "it runs until it is stopped"}
