from taskbull import App, from_lifespan

app = App("page")


class Model:
    def encode(self, texts: list[str]) -> list[list[float]]:
        return [[1.0] for _ in texts]


def load(path: str) -> Model:
    return Model()


model = Model()
