// SPDX-License-Identifier: Apache-2.0
#include "exchange/numbers.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/copy_bytes.h"
#include "exchange/backward_status.h"
#include "world/collectives.h"

namespace sherd::exchange {
namespace {

double combine(double a, double b, ScalarReduceOp op) {
  if (op != ScalarReduceOp::kMax) {
    return a + b;
  }
  return b > a || std::isnan(b) ? b : a;
}

}  // namespace

at::Tensor bytes_of(const void* data, std::size_t size) {
  auto bytes =
      at::empty({static_cast<std::int64_t>(size)}, c10::ScalarType::Byte);
  copy_bytes(bytes.mutable_data_ptr(), data, size);
  return bytes;
}

void combine_scalars(
    std::span<const at::Tensor> bytes,
    ScalarReduceOp op,
    const at::Tensor& values) {
  SHERD_ASSERT(
      values.scalar_type() == c10::ScalarType::Double &&
      values.is_contiguous());
  auto* out = values.mutable_data_ptr<double>();
  const std::vector<double> mine(out, out + values.numel());
  std::vector<double> theirs(mine.size());
  std::vector<double> same(mine.size(), 1.0);
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    SHERD_ASSERT(bytes[r].nbytes() == values.nbytes());
    copy_bytes(theirs.data(), bytes[r].const_data_ptr(), values.nbytes());
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      if (op == ScalarReduceOp::kSame) {
        same[i] = same[i] != 0.0 && theirs[i] == mine[i] ? 1.0 : 0.0;
      } else {
        out[i] = r == 0 ? theirs[i] : combine(out[i], theirs[i], op);
      }
    }
  }
  if (op == ScalarReduceOp::kSame) {
    std::ranges::copy(same, out);
  }
}

// Every rank finds the same difference, from the same messages. None may close
// before all have those messages, hence the second round: who still waits would
// find a lost rank instead.
Status compare_models(world::Transport& transport, const ModelSpec& model) {
  std::string mine;
  for (const auto& line : describe(model)) {
    mine += line + "\n";
  }
  const auto all =
      world::Collectives(transport, "comparing the model between ranks")
          .all_gather_texts(mine);
  SHERD_RETURN_IF_FAILED(all.status());
  const auto difference = first_difference(all.value(), transport.ranks());
  if (difference.empty()) {
    return {};
  }
  (void)world::Collectives(transport, "the same difference")
      .all_gather_texts("");
  return {ErrorCode::kPeerMismatch, difference};
}

}  // namespace sherd::exchange
