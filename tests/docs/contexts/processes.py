from taskbull import App, from_lifespan

app = App("page")


class Model: ...


def load(path: str) -> Model:
    return Model()
