// SPDX-License-Identifier: Apache-2.0
#include "fsdp/parameter_integrity.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "autograd/param_key.h"
#include "base/check.h"
#include "base/hash.h"

namespace sherd::fsdp {
namespace {

// The bytes of a storage that a tensor lies in, with gaps where it has strides.
struct StorageRange {
  const c10::StorageImpl* storage;
  std::int64_t begin;
  std::int64_t end;
  std::string name;
  at::Tensor tensor;
  bool trained;
};

void add_range(
    std::vector<StorageRange>& ranges,
    const std::string& name,
    const at::Tensor& tensor,
    bool trained) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) {
    return;
  }
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  const auto element = static_cast<std::int64_t>(tensor.element_size());
  const auto begin = tensor.storage_offset() * element;
  ranges.push_back(
      {tensor.storage().unsafeGetStorageImpl(), begin,
       begin + (last + 1) * element, name, tensor, trained});
}

// REQUIRES: ranges that overlap. Elements of two sizes count as shared.
bool share_elements(const StorageRange& a, const StorageRange& b) {
  const auto element = static_cast<std::int64_t>(a.tensor.element_size());
  if (a.tensor.element_size() != b.tensor.element_size()) {
    return true;
  }
  const auto count = std::max(a.end, b.end) / element;
  const auto numbers = at::arange(count, at::kLong);
  const auto numbers_of = [&](const at::Tensor& tensor) {
    return numbers
        .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset())
        .reshape({-1});
  };
  const auto in_a = at::zeros({count}, at::kBool);
  in_a.index_fill_(0, numbers_of(a.tensor), true);
  return in_a.index_select(0, numbers_of(b.tensor)).any().item<bool>();
}

}  // namespace

void check_no_shared_elements(
    const torch::nn::Module& module, const ModelUnits& model) {
  std::vector<StorageRange> ranges;
  std::set<const c10::TensorImpl*> known;
  for (const auto& parameter : model.parameters) {
    known.insert(parameter.tensor.unsafeGetTensorImpl());
    add_range(
        ranges, parameter.name, parameter.tensor,
        parameter.tensor.requires_grad());
  }
  for (const auto& others :
       {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : others) {
      if (known.insert(item.value().unsafeGetTensorImpl()).second) {
        add_range(ranges, item.key(), item.value(), /*trained=*/false);
      }
    }
  }
  std::ranges::sort(ranges, [](const auto& a, const auto& b) {
    return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
  });
  for (auto a = ranges.begin(); a != ranges.end(); ++a) {
    for (auto b = a + 1;
         b != ranges.end() && b->storage == a->storage && b->begin < a->end;
         ++b) {
      SHERD_CHECK(
          !(a->trained || b->trained) || !share_elements(*a, *b), "[fsdp] ",
          a->name, " and ", b->name,
          " share memory, and would be two tensors once one is sharded; "
          "expected one tensor registered under both names, or clone() of it");
    }
  }
}

void check_storages(const ModelUnits& model, const Storages& storages) {
  for (const auto& parameter : model.parameters) {
    const auto& storage = *storages[static_cast<std::size_t>(parameter.unit)]
                                   [static_cast<std::size_t>(parameter.flat)];
    SHERD_CHECK_AS(
        kFailedPrecondition, autograd::is_adopted(parameter.tensor, storage),
        "[fsdp] parameter ", parameter.name,
        " was given another storage after sharding (module->to(), set_data() "
        "or the like); convert the module before fully_shard, or write values "
        "inside summon_full_parameters(), not read_only");
  }
}

void check_replacement(
    const ModelUnits& model, const ManagedParameter& parameter) {
  const auto& flat = model.flat_of(parameter);
  const auto& shape = flat.shapes[static_cast<std::size_t>(parameter.position)];
  const auto& given = parameter.tensor;
  SHERD_CHECK_AS(
      kFailedPrecondition,
      given.scalar_type() == flat.unsharded_dtype() &&
          given.device() == model.device && str(given.sizes()) == shape,
      "[fsdp] parameter ", parameter.name,
      " was replaced inside summon_full_parameters() (torch::load(), "
      "set_data() or the like): expected ",
      c10::toString(flat.unsharded_dtype()), " ", shape, " on ",
      model.device.str(), ", found ", c10::toString(given.scalar_type()), " ",
      given.sizes(), " on ", given.device().str());
}

std::uint64_t flags_fingerprint(const ModelUnits& model) {
  Hash64 hash;
  for (const auto& parameter : model.parameters) {
    hash.add(parameter.tensor.requires_grad() ? 1U : 0U);
  }
  return hash.value();
}

void check_can_train(const ModelUnits& model) {
  for (const auto& parameter : model.parameters) {
    SHERD_CHECK_AS(
        kFailedPrecondition,
        parameter.trainable >= 0 || !parameter.tensor.requires_grad(),
        "[fsdp] parameter ", parameter.name, " needs gradients and is of type ",
        c10::toString(parameter.tensor.scalar_type()),
        "; expected a real floating-point type, or requires_grad(false)");
  }
}

}  // namespace sherd::fsdp
