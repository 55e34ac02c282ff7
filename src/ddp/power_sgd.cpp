// SPDX-License-Identifier: Apache-2.0
// Vogels et al., PowerSGD: Practical Low-Rank Gradient Compression, arXiv 1905.13727: algorithm 1
// on each matrix of a bucket, with the error feedback of algorithm 2. There are two messages per
// bucket: all P together with what is not compressed, and all Q. If batched, the bucket is the only
// matrix.
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <sherd/ddp/comm_hook.h>

#include "base/check.h"
#include "base/hash.h"
#include "ddp/hook_step_counter.h"

namespace sherd {
namespace {

// What is left of a column without the ones before it, relative to all of it: less is rounding.
constexpr double kSmallestRest = 1e-4;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct MatrixShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

MatrixShape matrix_shape(const at::Tensor& gradient) {
  if (gradient.dim() < 2 || gradient.numel() == 0) {
    return {};
  }
  return {gradient.size(0), gradient.numel() / gradient.size(0)};
}

bool is_worth_compressing(
    const MatrixShape& matrix, const PowerSgdOptions& options) {
  const auto whole = static_cast<double>(matrix.rows * matrix.columns);
  const auto low =
      static_cast<double>((matrix.rows + matrix.columns) * options.rank);
  return matrix.rows > 0 && whole >= options.compression_min * low;
}

// One pass of Gram-Schmidt. A column that depends on the ones before it becomes zero: its rest is
// rounding.
void subtract_earlier_columns(const at::Tensor& p) {
  const auto smallest = p.norm(2, 0) * kSmallestRest;
  for (std::int64_t i = 0; i < p.size(1); ++i) {
    auto column = p.select(1, i);
    const auto norm = column.norm();
    column.div_(at::where(norm.gt(smallest[i]), norm, kInfinity));
    if (i + 1 < p.size(1)) {
      auto rest = p.narrow(1, i + 1, p.size(1) - i - 1);
      rest.sub_(column.unsqueeze(1).mm(column.unsqueeze(0).mm(rest)));
    }
  }
}

// Makes the columns orthonormal or zero, in place; equal inputs give equal bits. The first pass may
// leave little of a column but rounding, which the length of 1 enlarges. That is not orthogonal to
// the earlier columns, which would count twice. The second pass subtracts it, and no third is needed
// (Giraud et al., Numerische Mathematik 101, 2005).
void orthonormalise(const at::Tensor& p) {
  subtract_earlier_columns(p);
  if (p.size(1) > 1) {
    subtract_earlier_columns(p);
  }
}

// Divides each column by its length, which is that of a gradient: P, which may be sent in fp16, has
// the gradient's magnitude then instead of the square of it.
at::Tensor with_unit_columns(const at::Tensor& q) {
  const auto length = q.norm(2, 0, /*keepdim=*/false, at::kDouble);
  return q.div(
      length.to(at::kFloat).clamp_min(std::numeric_limits<float>::min()));
}

// The dtype in which P, Q and what is not compressed are sent.
at::ScalarType sent_dtype(const GradientBucket& bucket) {
  const auto dtype = bucket.gradients.scalar_type();
  return c10::isReducedFloatingType(dtype) ? dtype : at::kFloat;
}

class PowerSgd final : public CommHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options) : options_(options) {
    SHERD_CHECK(
        options.rank >= 1 && options.start_step >= 0 &&
            options.compression_min > 0.0,
        "[ddp] power_sgd: expected rank of at least 1, start_step of at least "
        "0 and compression_min above 0, found ",
        options.rank, ", ", options.start_step, " and ",
        options.compression_min);
  }

  std::string name() const override {
    return str(
        "power_sgd(rank ", options_.rank, options_.batched ? ", batched" : "",
        ")");
  }

  void reduce(GradientBucket& bucket, HookGroup& group) override {
    const auto step = steps_.at(bucket);
    if (step < options_.start_step) {
      group.all_reduce_mean(bucket.gradients);
      return;
    }
    options_.batched ? reduce_batch(bucket, step, group)
                     : reduce_matrices(bucket, step, group);
  }

  State state() const override {
    State state = {{ddp::HookStepCounter::kName, steps_.state()}};
    for (const auto& [name, memory] : memory_) {
      if (memory.q.defined()) {
        state.emplace_back("q." + name, memory.q);
      }
      if (memory.error.defined()) {
        state.emplace_back("error." + name, memory.error);
      }
    }
    return state;
  }

  void load(const State& state) override {
    std::map<std::string, ParameterState> loaded;
    at::Tensor step;
    for (const auto& [name, tensor] : state) {
      if (name == ddp::HookStepCounter::kName) {
        step = tensor;
        continue;
      }
      const auto dot = name.find('.');
      const auto kind = name.substr(0, dot);
      SHERD_CHECK(
          dot != std::string::npos && (kind == "q" || kind == "error"),
          "[ddp] power_sgd: expected state named step, q.* or error.*, found '",
          name, "'");
      auto& memory = loaded[name.substr(dot + 1)];
      // It stays on the CPU until gradients come and show the device.
      (kind == "q" ? memory.q : memory.error) =
          tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    }
    SHERD_CHECK(
        step.defined(),
        "[ddp] power_sgd: expected state named step, found none");
    memory_ = std::move(loaded);
    steps_.load(step);
  }

  void reset() override {
    memory_.clear();
    steps_.reset();
  }

 private:
  struct ParameterState {
    at::Tensor q;      // [columns, rank]; undefined: none.
    at::Tensor error;  // [rows, columns]; undefined: none.
  };
  // A matrix that is being reduced.
  struct LowRankMatrix {
    std::string name;
    at::Tensor gradient;  // The result is written here.
    at::Tensor whole;     // [rows, columns], fp32: gradient plus error.
    at::Tensor p;         // [rows, rank]
    at::Tensor q;         // [columns, rank]
    // Kept if the result is not finite; an undefined error: there was none.
    at::Tensor old_q;
    at::Tensor old_error;
  };

  at::Tensor first_q(
      const std::string& name,
      const MatrixShape& matrix,
      std::int64_t step) const {
    Hash64 hash;
    hash.add(options_.seed);
    hash.add(name);
    hash.add(options_.warm_start ? 0U : static_cast<std::uint64_t>(step));
    auto generator = at::detail::createCPUGenerator(hash.value());
    return at::randn({matrix.columns, options_.rank}, generator, at::kFloat);
  }

  void reduce_matrices(
      const GradientBucket& bucket, std::int64_t step, HookGroup& group) {
    std::vector<LowRankMatrix> low;
    std::vector<at::Tensor> plain;
    for (const auto& [name, gradient] : bucket.parameters) {
      const auto matrix = matrix_shape(gradient);
      if (is_worth_compressing(matrix, options_)) {
        low.push_back(begin(name, gradient, matrix, step));
      } else {
        plain.push_back(gradient);
      }
    }
    reduce_low_rank(low, std::move(plain), sent_dtype(bucket), group);
  }

  // Buckets may change, so errors are kept by parameter. Q belongs to the bucket and is stored
  // under the name of the bucket's first parameter.
  void reduce_batch(
      const GradientBucket& bucket, std::int64_t step, HookGroup& group) {
    const auto numel = bucket.gradients.numel();
    const auto side = static_cast<std::int64_t>(
        std::ceil(std::sqrt(static_cast<double>(numel))));
    const MatrixShape matrix{.rows = side, .columns = side};
    if (!is_worth_compressing(matrix, options_)) {
      group.all_reduce_mean(bucket.gradients);
      return;
    }
    const auto square =
        at::zeros({side, side}, bucket.gradients.options().dtype(at::kFloat));
    const auto elements = square.view({-1}).narrow(0, 0, numel);
    elements.copy_(bucket.gradients);
    const auto errors = errors_of(bucket, square);
    if (errors.defined()) {
      square.add_(errors);
    }
    std::vector<LowRankMatrix> low = {
        begin("batch." + bucket.parameters[0].name, square, matrix, step)};
    low[0].old_error = errors;
    reduce_low_rank(low, {}, sent_dtype(bucket), group);
    bucket.gradients.copy_(elements);
    auto error = std::exchange(memory_[low[0].name].error, {});
    if (!error.defined()) {
      return;
    }
    for (const auto& [name, gradient] : bucket.parameters) {
      memory_[name].error = place_in(error, bucket, gradient).clone();
    }
  }

  // The gradient's elements of a square that holds the bucket's elements.
  static at::Tensor place_in(
      const at::Tensor& square,
      const GradientBucket& bucket,
      const at::Tensor& gradient) {
    return square.as_strided(
        gradient.sizes(), gradient.strides(),
        gradient.storage_offset() - bucket.gradients.storage_offset());
  }

  // The errors as a square; undefined: there are none.
  at::Tensor errors_of(
      const GradientBucket& bucket, const at::Tensor& square) const {
    at::Tensor errors;
    for (const auto& [name, gradient] : bucket.parameters) {
      const auto known = memory_.find(name);
      if (known != memory_.end() && known->second.error.defined()) {
        errors = errors.defined() ? errors : at::zeros_like(square);
        place_in(errors, bucket, gradient)
            .copy_(known->second.error.view(gradient.sizes()));
      }
    }
    return errors;
  }

  LowRankMatrix begin(
      const std::string& name,
      const at::Tensor& gradient,
      const MatrixShape& matrix,
      std::int64_t step) {
    auto& memory = memory_[name];
    LowRankMatrix low;
    low.name = name;
    low.gradient = gradient;
    low.whole = gradient.reshape({matrix.rows, matrix.columns})
                    .to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (memory.error.defined()) {
      memory.error = memory.error.to(gradient.device());
      low.whole.add_(memory.error);
    }
    const bool kept = options_.warm_start && memory.q.defined() &&
        memory.q.size(0) == matrix.columns && memory.q.size(1) == options_.rank;
    low.q =
        (kept ? memory.q : first_q(name, matrix, step)).to(gradient.device());
    low.old_q = low.q;
    low.old_error = memory.error;
    low.p = low.whole.mm(with_unit_columns(low.q));
    return low;
  }

  // `plain` is averaged, too, in the first of two messages.
  void reduce_low_rank(
      std::vector<LowRankMatrix>& low,
      std::vector<at::Tensor> plain,
      at::ScalarType dtype,
      HookGroup& group) {
    for (const auto& one : low) {
      plain.push_back(one.p);
    }
    mean_of(plain, dtype, group);
    std::vector<at::Tensor> all_q;
    for (auto& one : low) {
      orthonormalise(one.p);
      one.q = one.whole.t().mm(one.p);
      all_q.push_back(one.q);
    }
    mean_of(all_q, dtype, group);
    for (auto& one : low) {
      end(one);
    }
  }

  // Averages the tensors in one message of the dtype.
  static void mean_of(
      const std::vector<at::Tensor>& all,
      at::ScalarType dtype,
      HookGroup& group) {
    std::int64_t numel = 0;
    for (const auto& one : all) {
      numel += one.numel();
    }
    if (numel == 0) {
      return;
    }
    const auto pack = at::empty({numel}, all[0].options().dtype(dtype));
    const auto each = [&](auto&& move) {
      std::int64_t offset = 0;
      for (const auto& one : all) {
        move(pack.narrow(0, offset, one.numel()).view(one.sizes()), one);
        offset += one.numel();
      }
    };
    each([](at::Tensor room, const at::Tensor& one) { room.copy_(one); });
    group.all_reduce_mean(pack);
    each([](const at::Tensor& room, at::Tensor one) { one.copy_(room); });
  }

  void end(LowRankMatrix& low) {
    auto& memory = memory_[low.name];
    const auto approximation = low.p.mm(low.q.t());
    low.gradient.copy_(approximation.view(low.gradient.sizes()));
    // If some number is not finite, the step will be skipped on every rank, and nothing of this
    // matrix is kept. On a device an operator decides that, because otherwise the host would have to
    // wait for the answer.
    const auto is_finite = at::isfinite(approximation).all();
    if (is_finite.is_cpu() && !is_finite.item<bool>()) {
      return;
    }
    const auto kept = [&](const at::Tensor& value, const at::Tensor& old) {
      return value.is_cpu()
          ? value
          : at::where(
                is_finite, value, old.defined() ? old : at::zeros_like(value));
    };
    if (options_.error_feedback) {
      memory.error = kept(low.whole.sub_(approximation), low.old_error);
    }
    // A column of zeros would be one in every later step, too.
    const auto alive = low.q.abs().amax(0, /*keepdim=*/true).gt(0);
    memory.q = kept(at::where(alive, low.q, low.old_q), low.old_q);
  }

  const PowerSgdOptions options_;
  ddp::HookStepCounter steps_;
  std::map<std::string, ParameterState> memory_;  // By parameter.
};

}  // namespace

CommHookPtr power_sgd(const PowerSgdOptions& options) {
  return std::make_shared<PowerSgd>(options);
}

}  // namespace sherd
