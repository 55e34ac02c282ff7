# SPDX-License-Identifier: Apache-2.0
"""Every public name has a docstring, and every public function annotations."""

import inspect
import unittest

import ranks


def public(owner):
    """(name, function or class) of what users call."""
    names = owner.__all__ if hasattr(owner, "__all__") else vars(owner)
    for name in names:
        value = inspect.getattr_static(owner, name)
        value = getattr(value, "__func__", value)
        value = value.fget if isinstance(value, property) else value
        if not name.startswith("_") and (inspect.isclass(value) or
                                         inspect.isfunction(value)):
            yield name, value


class Api(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def check_function(self, name, function):
        self.assertTrue(function.__doc__, name)
        signature = inspect.signature(function)
        self.assertIsNot(signature.return_annotation, inspect.Signature.empty, name)
        for parameter in list(signature.parameters.values()):
            # A handle may be of either kind.
            if parameter.name not in ("self", "handle", "core", "mesh"):
                self.assertIsNot(
                    parameter.annotation, inspect.Parameter.empty, (name, parameter))

    def test_public_names_are_described(self):
        checked = 0
        for name, value in public(self.sherd):
            if inspect.isfunction(value):
                self.check_function(name, value)
                checked += 1
            elif value.__module__.startswith("sherd.") and "_core" not in value.__module__:
                self.assertTrue(value.__doc__, name)
                for method, function in public(value):
                    self.check_function(f"{name}.{method}", function)
                    checked += 1
        self.assertGreater(checked, 30)

    def test_it_says_that_it_is_typed(self):
        import importlib.resources  # pylint: disable=import-outside-toplevel
        self.assertTrue(
            (importlib.resources.files("sherd") / "py.typed").is_file())


if __name__ == "__main__":
    ranks.main()
