"""`NKIObject`: the base class of a kernel's own classes."""

from __future__ import annotations

import copy
import inspect
from typing import Any

_MISSING = object()


class NKIObject:
    """A class whose fields are its annotations and class-level values.

    `__init__` takes the fields as keyword arguments. A field that is not given gets the value that
    the class has for it, a copy of it where that is a list, a dictionary, a set or another object
    of this kind; a field for which the class has none stays unset. `__post_init__`, where the class
    has one, is called last. A subclass may have its own `__init__`, or be a dataclass, frozen too.

    Raises:
        TypeError: there is no field of that name.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # kernels write `@dataclass` over fields without annotations, which NKI takes as fields and
        # Python's dataclass would not see
        annotations = inspect.get_annotations(cls)
        for name, value in vars(cls).items():
            if name not in annotations and not name.startswith("_") and _is_plain(value):
                annotations = {**annotations, name: Any}
        cls.__annotations__ = annotations

    def __init__(self, **kwargs: Any) -> None:
        fields = _fields(type(self))
        for name in kwargs:
            if name not in fields:
                known = ", ".join(fields) or "none"
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument {name!r}; "
                    f"its fields are: {known}"
                )
        for name, default in fields.items():
            if name in kwargs:
                setattr(self, name, kwargs[name])
            elif default is not _MISSING:
                setattr(self, name, _own(default))
        finish = getattr(self, "__post_init__", None)
        if finish is not None:
            finish()


def _fields(kind: type) -> dict[str, Any]:
    """The annotated names of a class and its bases, bases first, with their defaults."""
    names: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            if "ClassVar" not in str(annotation):
                names[name] = getattr(kind, name, _MISSING)
    return names


def _is_plain(value: Any) -> bool:
    """A value that may be a default: no method, no property, nothing that instances would share."""
    if isinstance(value, (list, dict, set)):
        return False
    return not callable(value) and not hasattr(value, "__get__")


def _own(default: Any) -> Any:
    if isinstance(default, (list, dict, set, NKIObject)):
        return copy.deepcopy(default)
    return default
