"""Classes of packages that taskbull does not need: known by name, so that none is imported."""

from __future__ import annotations


def is_pydantic_model(kind: type) -> bool:
    """Return whether a class is a model of pydantic 2."""
    return hasattr(kind, "model_validate_json") and any(
        base.__module__ == "pydantic.main" and base.__name__ == "BaseModel" for base in kind.__mro__
    )
