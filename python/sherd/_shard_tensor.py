# SPDX-License-Identifier: Apache-2.0
"""A part of a tensor that torch.distributed.checkpoint can save and load.

A slice holds elements [begin, end) of a flattened tensor. Checkpoints of PyTorch are
made of boxes, so a slice is saved as the few boxes that it consists of, each of them
a view of the slice. PyTorch asks for them by the methods of its _Checkpointable.
"""

import math

import torch

from .errors import InvalidArgumentError

_aten = torch.ops.aten
_ELEMENTWISE = (_aten.detach.default, _aten.clone.default, _aten._to_copy.default,
                _aten.empty_like.default)


def boxes(shape, begin, end):
    """(offsets, sizes) of the boxes that elements [begin, end) of a flattened tensor
    of this shape consist of, in order: at most 2 * dimensions - 1."""
    if math.prod(shape) == 0:
        return [((0,) * len(shape), tuple(shape))]
    if begin >= end:
        return []
    if not shape:
        return [((), ())]
    row = math.prod(shape[1:])
    first, last = begin // row, (end - 1) // row
    if first == last and end - begin < row:
        inner = boxes(shape[1:], begin - first * row, end - first * row)
        return [((first, *offsets), (1, *sizes)) for offsets, sizes in inner]
    if begin == first * row and end == (last + 1) * row:
        return [((first,) + (0,) * (len(shape) - 1),
                 (last - first + 1, *shape[1:]))]
    cuts = sorted({begin, -(-begin // row) * row, end // row * row, end})
    return [box for a, b in zip(cuts, cuts[1:]) for box in boxes(shape, a, b)]


def has_values(tensor):
    """False for what stands for values that lie elsewhere, as a DTensor does."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


class ShardTensor(torch.Tensor):
    """This rank's part of a tensor: it has the whole one's shape, and `elements`,
    1-D, from index `begin` of the flattened tensor. Copies of it are parts, too;
    other operators raise. With ``writes=False`` it is loaded and not saved."""

    @staticmethod
    def __new__(cls, shape, elements, begin, writes=True):
        # pylint: disable-next=attribute-defined-outside-init
        self = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=elements.dtype, device=elements.device)
        self.elements, self.begin, self.writes = elements.detach(), begin, writes
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _ELEMENTWISE:
            mine = args[0]
            return cls(mine.shape, func(mine.elements, **kwargs), mine.begin,
                       mine.writes)
        if func is _aten.new_empty.default and tuple(args[1]) == args[0].shape:
            # What asynchronous saves of PyTorch then copy the attributes into.
            return cls(args[0].shape, torch.empty_like(args[0].elements), args[0].begin,
                       args[0].writes)
        if func is _aten.copy_.default and all(
                isinstance(arg, cls) for arg in args[:2]):
            args[0].elements.copy_(args[1].elements)
            return args[0]
        raise InvalidArgumentError(
            f"[python] {func}: expected whole tensors, found a rank's part of one; "
            "state_dict('full') has whole ones")

    def __repr__(self, *, tensor_contents=None):
        return (f"ShardTensor(shape={tuple(self.shape)}, begin={self.begin}, "
                f"elements={self.elements})")

    def __deepcopy__(self, memo):
        return self.clone()

    def _boxes(self):
        return boxes(self.shape, self.begin, self.begin + self.elements.numel())

    def __create_write_items__(self, fqn, _object):
        # What the rest of a slice consists of is on other ranks.
        # pylint: disable-next=import-outside-toplevel
        from torch.distributed.checkpoint import metadata, planner
        properties = metadata.TensorProperties.create_from_tensor(self.elements)
        return [planner.WriteItem(
            index=metadata.MetadataIndex(fqn, chunk.offsets),
            type=planner.WriteItemType.SHARD,
            tensor_data=planner.TensorWriteData(
                chunk=chunk, properties=properties, size=self.size()))
            for chunk in self.__create_chunk_list__() if self.writes]

    def __create_chunk_list__(self):
        # Imported here because `import sherd` need not take that time.
        # pylint: disable-next=import-outside-toplevel
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
        return [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
                for offsets, sizes in self._boxes()]

    def __get_tensor_shard__(self, index):
        done = 0
        for offsets, sizes in self._boxes():
            numel = math.prod(sizes)
            if index.offset is None or tuple(index.offset) == offsets:
                return self.elements[done:done + numel].view(sizes)
            done += numel
        raise InvalidArgumentError(
            f"[python] {index.fqn}: expected the place of a part, found {index.offset}")
