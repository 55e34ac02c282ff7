# SPDX-License-Identifier: Apache-2.0
"""From arguments of Python to the structs of options that the extension takes."""

import re

from .errors import InvalidArgumentError


# Arguments of Python that have PyTorch's names instead of C++'s.
_ARGUMENTS = {"learning_rate": "lr", "epsilon": "eps", "learning_rate_scale": "lr_scale",
              "initialise": "init_fn"}


def member(enum, what, name):
    """The value of an enum of the extension that a user has named."""
    members = enum.__members__
    if name not in members:
        raise InvalidArgumentError(
            f"[python] {what}: expected one of {', '.join(members)}, found {name!r}")
    return members[name]


def set_option(options, name, value):
    """Sets a field, that of an enum by the name of its value. Raises
    InvalidArgumentError for a value of another type."""
    enum = type(getattr(options, name))
    if hasattr(enum, "__members__"):
        value = member(enum, name, value)
    try:
        setattr(options, name, value)
    except (TypeError, ValueError, RuntimeError) as error:
        wanted = re.search(r"arg0: (.*)\) -> None", str(error))
        text = (wanted[1] if wanted else "a value of another type").replace("_core.", "")
        text = re.sub(r"typing\.Supports(\w+) \| typing\.SupportsIndex",
                      lambda found: found[1].lower(), text)
        raise InvalidArgumentError(
            f"[python] {_ARGUMENTS.get(name, name)}: expected {text}, found "
            f"{value!r}") from None


def options_of(make, **values):
    """A struct of options with these fields; None leaves the default."""
    options = make()
    for name, value in values.items():
        if value is not None:
            set_option(options, name, value)
    return options


def names_of(names):
    """A list of names; one alone, which would be one of its letters, is an error."""
    return names if isinstance(names, str) else list(names)
