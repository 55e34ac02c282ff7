// SPDX-License-Identifier: Apache-2.0
//
// A module whose parameters and buffers have every unusual memory layout; their values are
// integers, as in small_models.h.
#pragma once

#include <torch/torch.h>
#include "support/small_models.h"

namespace sherd::test {

enum class Gaps { kWith, kWithout };

struct OddLayoutsImpl : torch::nn::Module {
  torch::Tensor transposed, channels_last, permuted, large, gaps, window;
  torch::Tensor table, strided;

  explicit OddLayoutsImpl(
      Gaps with = Gaps::kWith, at::ScalarType dtype = torch::kFloat) {
    const auto small_integers = [&](const std::vector<std::int64_t>& sizes,
                                    std::int64_t salt) {
      return test::small_integers(sizes, salt).to(dtype);
    };
    transposed =
        register_parameter("transposed", small_integers({4, 6}, 1).t());
    channels_last = register_parameter(
        "channels_last",
        small_integers({3, 4, 2, 2}, 2)
            .contiguous(at::MemoryFormat::ChannelsLast));
    permuted = register_parameter(
        "permuted", small_integers({2, 3, 4}, 3).permute({2, 0, 1}));
    // Its gradient is reduced on its own.
    large = register_parameter("large", small_integers({96, 192}, 4).t());
    // A part of some memory, or one piece if there must be no gaps.
    const bool apart = with == Gaps::kWith;
    const auto half_of = [&](const torch::Tensor& rows) {
      return apart ? rows.slice(1, 0, 6, 2) : rows.slice(0, 1, 4).t();
    };
    gaps = register_parameter("gaps", half_of(small_integers({4, 6}, 5)));
    window = register_parameter(
        "window",
        small_integers({40}, 6).as_strided({3, 4}, {1, apart ? 5 : 3}, 2));
    table = register_buffer("table", small_integers({3, 4}, 7).t());
    strided = register_buffer("strided", half_of(small_integers({4, 6}, 8)));
  }

  // Maps small integers to small integers.
  torch::Tensor forward(const torch::Tensor& rows) {
    const auto x = rows.to(transposed.scalar_type());
    const auto ints = [&](const std::vector<std::int64_t>& sizes) {
      return small_integers(sizes, 9).to(x.scalar_type());
    };
    const auto y = x.mm(transposed);
    const auto image = x.narrow(1, 0, 4).view({2, 4, 1, 1}) * ints({4, 2, 2});
    const auto z = torch::conv2d(image, channels_last).flatten(1).mm(window) +
        ints({2, 3}).mm(table.t());
    const auto u = y.mm((gaps + strided).narrow(0, 0, 4)) +
        y.mm(permuted.select(1, 1) - permuted.select(1, 0) * 2);
    const auto v = (x.repeat({1, 32}) * ints({192})).mm(large);
    return torch::cat({z, u, v}, 1);
  }
};
TORCH_MODULE(OddLayouts);

inline torch::Tensor odd_loss(OddLayouts& model, int batch, int rank) {
  const auto y = model->forward(integer_rows(batch, rank, 6));
  return (y * small_integers({2, y.size(1)}, 11)).sum();
}

// The same values, each in a contiguous tensor.
inline OddLayouts contiguous(OddLayouts model) {
  for (const auto& tensors : {model->parameters(), model->buffers()}) {
    for (auto tensor : tensors) {
      tensor.set_data(tensor.detach().contiguous());
    }
  }
  return model;
}

}  // namespace sherd::test
