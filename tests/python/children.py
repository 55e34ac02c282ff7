# SPDX-License-Identifier: Apache-2.0
"""Forked children of a test, and what they say of errors."""

import os
import signal


def in_child(act):
    """What a forked child says of itself, and how it ends, within a minute."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.close(out)
        code = 1
        try:
            os.write(into, str(act()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(into)
    with os.fdopen(out, "rb") as lines:
        text = lines.read().decode()
    return text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def error_of(act):
    try:
        act()
    except Exception as error:  # pylint: disable=broad-except
        return f"{type(error).__name__}: {error}"
    return "no error"
