NOT_RUN = {"from litestar": "litestar is not a development dependency"}
