# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's tests ask of a sharded model's values: the whole tensor behind a
slice, and that a model equals its replicated reference."""


def whole_values(calls, module):
    """By the id of a slice: the parameter and its gradient, whole. Collective."""
    values = {}
    for handle in calls.handles_in(module):
        scope = handle.summon_full_parameters(
            read_only=True, full_precision=True, with_gradients=True
        )
        with scope as whole:
            for name, part in calls.parts(handle):
                gradient = whole.gradient(name)
                values[id(part)] = (
                    whole.tensor(name).detach().clone(),
                    None if gradient is None else gradient.detach().clone(),
                )
    return values


def full_tensor(calls):
    """torch.Tensor.full_tensor: of a slice or its gradient, else the tensor."""

    def full(tensor):
        for handle in calls.handles():
            for name, part in calls.parts(handle):
                if tensor is part or tensor is part.grad:
                    value, gradient = whole_values(calls, handle.module)[id(part)]
                    return value if tensor is part else gradient
        return tensor

    return full


def checker(calls):
    """torch.testing._internal.common_fsdp.check_sharded_parity without DTensor."""

    def check(case, replicated, sharded, prefixes_to_ignore=()):
        values = whole_values(calls, sharded)
        for (name, expected), (found_name, part) in zip(
            replicated.named_parameters(), sharded.named_parameters(), strict=True
        ):
            for prefix in prefixes_to_ignore:
                found_name = found_name.replace(prefix, "")
            case.assertEqual(name, found_name)
            value, gradient = values.get(id(part), (part, part.grad))
            case.assertEqual(value, expected.detach(), msg=name)
            if expected.grad is None:
                # A rank that has nothing of a parameter cannot know.
                case.assertTrue(part.grad is None or not part.numel(), name)
            else:
                case.assertEqual(gradient, expected.grad, msg=name)

    return check
