// SPDX-License-Identifier: Apache-2.0
#include "access/operator_class.h"

#include <array>
#include <string_view>
#include <unordered_set>

namespace sherd::access {
namespace {

// Base names in namespace aten; every overload of a name behaves alike.
constexpr std::array kNames = {
    // Views.
    "_reshape_alias", "_unsafe_view", "adjoint", "alias", "as_strided",
    "broadcast_to", "chunk", "detach", "diagonal", "expand", "expand_as",
    "hsplit", "mH", "mT", "matrix_H", "movedim", "moveaxis", "narrow",
    "numpy_T", "permute", "select", "slice", "split", "split_with_sizes",
    "squeeze", "swapaxes", "swapdims", "t", "transpose",
    "unbind", "unfold", "unsqueeze", "view", "view_as", "vsplit",
    // Shape, dtype or autograd metadata only. The first is what set_data()
    // asks: adoption itself must visit nobody.
    "_has_compatible_shallow_copy_type", "_version", "can_cast", "dim", "empty_like", "full_like",
    "is_complex", "is_contiguous", "is_floating_point", "is_inference",
    "is_leaf", "is_same_size", "is_signed", "new_empty",
    "new_empty_strided", "new_full", "new_ones", "new_zeros", "numel",
    "ones_like", "output_nr", "promote_types", "rand_like", "randint_like",
    "randn_like", "requires_grad_", "result_type", "retain_grad",
    "retains_grad", "size", "stride", "sym_numel", "sym_size",
    "sym_storage_offset", "sym_stride", "zeros_like",
};

std::unordered_set<c10::OperatorHandle> find_operators() {
  std::unordered_set<std::string_view> wanted(kNames.begin(), kNames.end());
  std::unordered_set<c10::OperatorHandle> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    constexpr std::string_view kNamespace = "aten::";
    const std::string_view full = name.name;
    if (!full.starts_with(kNamespace) ||
        !wanted.contains(full.substr(kNamespace.size()))) {
      continue;
    }
    if (auto op = dispatcher.findSchema(name)) {
      found.insert(*op);
    }
  }
  return found;
}

}  // namespace

bool reads_no_bytes(const c10::OperatorHandle& op) {
  static const auto kOperators = find_operators();
  return kOperators.contains(op);
}

}  // namespace sherd::access
