"""Objects of the program that keep their own state."""

__all__ = ["is_stateful"]


def is_stateful(value: object) -> bool:
    """Whether the object keeps its own state: an instance with `state_dict` and `load_state_dict`."""
    cls = type(value)
    return (
        hasattr(cls, "state_dict")
        and hasattr(cls, "load_state_dict")
        and not isinstance(value, type)
        and callable(value.state_dict)  # type: ignore[attr-defined]
        and callable(value.load_state_dict)  # type: ignore[attr-defined]
    )
