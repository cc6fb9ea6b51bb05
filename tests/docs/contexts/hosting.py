def read_token() -> str:
    return "secret"
