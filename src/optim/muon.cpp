// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/muon.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include "base/check.h"
#include "optim/cut_matrices.h"
#include "optim/newton_schulz.h"
#include "optim/slice_set.h"

namespace sherd {
namespace {

constexpr const char* kMuon = "Muon";
constexpr int kIterationsEnd = 100;  // As in PyTorch.

MuonOptions checked(const MuonOptions& options) {
  optim::check_not_negative(kMuon, "learning_rate", options.learning_rate);
  optim::check_not_negative(kMuon, "weight_decay", options.weight_decay);
  SHERD_CHECK(
      options.momentum >= 0.0 && options.momentum < 1.0, "[optim] ", kMuon,
      ": expected momentum in [0, 1), found ", options.momentum);
  SHERD_CHECK(
      options.iterations >= 1 && options.iterations < kIterationsEnd,
      "[optim] ", kMuon, ": expected iterations in [1, ", kIterationsEnd,
      "), found ", options.iterations);
  SHERD_CHECK(
      options.epsilon > 0.0, "[optim] ", kMuon,
      ": expected epsilon above 0, found ", options.epsilon);
  SHERD_CHECK(
      options.iteration_dtype == at::kBFloat16 ||
          options.iteration_dtype == at::kFloat,
      "[optim] ", kMuon,
      ": expected iteration_dtype to be BFloat16 or Float, found ",
      options.iteration_dtype);
  return options;
}

// A matrix as this rank sees it. If this rank has no slice, no part of the matrix lies here. During
// a step of ranks that share no gradients, `part` and `whole` are of the gradient.
struct MuonMatrix : optim::CutMatrix {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  at::Tensor slice = {};
  std::int64_t slice_begin = 0;
  at::Tensor shared_gradient = {};  // Whole; undefined: `slice` is, or cut.
  at::Tensor momentum = {};         // On the owner, from its first update on.

  // The whole gradient as a matrix. REQUIRES: there is one.
  at::Tensor gradient() const {
    return shared_gradient.defined()
        ? shared_gradient
        : (whole.defined() ? whole : slice.grad()).view({rows, columns});
  }
  void allocate_momentum() {
    if (!momentum.defined()) {
      momentum = at::zeros({rows, columns}, options);
    }
  }
  bool is_cut() const { return !shared_gradient.defined() && !cuts.empty(); }
  // This rank's part of the gradient, in the slice's shape.
  at::Tensor gradient_of_slice() const {
    if (is_cut()) {
      return slice.grad();
    }
    return gradient()
        .view({-1})
        .narrow(0, slice_begin, slice.numel())
        .view(slice.sizes());
  }
};

MuonMatrix matrix_of(const WholeParameter& parameter) {
  SHERD_CHECK(
      parameter.shape.size() == 2, "[optim] ", kMuon,
      ": expected parameters of 2 dimensions, found \"", parameter.name,
      "\" of shape ", at::IntArrayRef(parameter.shape),
      "; give it to another optimizer (sherd::split)");
  MuonMatrix matrix;
  matrix.name = parameter.name;
  matrix.rows = parameter.shape[0];
  matrix.columns = parameter.shape[1];
  matrix.slice_begin = parameter.slice_begin;
  matrix.shared_gradient = parameter.gradient;
  matrix.cuts = parameter.cuts;
  matrix.options = parameter.options;
  return matrix;
}

// Drops what a step has gathered, also if the step fails: the next backward copies a gradient that
// somebody still holds.
struct GatheredGradients {
  ~GatheredGradients() {
    for (auto& matrix : matrices) {
      matrix.part.reset();
      matrix.whole.reset();
    }
  }
  std::vector<MuonMatrix>& matrices;
};

}  // namespace

struct Muon::Impl {
  Impl(NamedParameters given, const MuonOptions& wanted)
      : options(checked(wanted)),
        parameters(optim::without_untrainable(std::move(given))) {
    auto& whole = parameters.whole;
    if (whole.items.empty()) {
      for (const auto& [name, slice] : parameters.items) {
        whole.items.push_back(
            {.name = name,
             .shape = slice.sizes().vec(),
             .options = slice.options()});
      }
    }
    SHERD_CHECK(
        !whole.items.empty(), "[optim] ", kMuon,
        ": expected at least one parameter, found none");
    SHERD_CHECK(
        whole.ranks == 1 || whole.gradients_are_shared || whole.all_to_all,
        "[optim] ", kMuon,
        ": expected gradients that ranks share "
        "(FullyShardOptions::share_gradients), or shards on devices, without "
        "cpu_offload and OptimizerAxes::kBoth, found \"",
        whole.items.front().name, "\" cut among ", whole.ranks,
        " ranks with private ones");
    optim::check_slices(kMuon, parameters.items);
    std::vector<std::int64_t> costs;
    for (const auto& parameter : whole.items) {
      auto matrix = matrix_of(parameter);
      if (whole.ranks > 1 && !matrix.shared_gradient.defined() &&
          matrix.cuts.empty()) {
        continue;  // Frozen.
      }
      matrices.push_back(std::move(matrix));
      costs.push_back(optim::newton_schulz_cost(
          matrices.back().rows, matrices.back().columns));
    }
    const auto owners = optim::assign_by_cost(costs, whole.ranks);
    for (std::size_t m = 0; m < matrices.size(); ++m) {
      auto& matrix = matrices[m];
      matrix.owner = owners[m];
      const auto item = std::ranges::find_if(
          parameters.items,
          [&](const auto& i) { return i.name == matrix.name; });
      if (item != parameters.items.end()) {
        SHERD_CHECK(
            item->slice.is_contiguous(), "[optim] ", kMuon, ": expected \"",
            matrix.name, "\" to be contiguous, found strides ",
            item->slice.strides());
        matrix.slice = item->slice;
      }
    }
    if (parameters.claim) {
      claim = parameters.claim();
    }
  }

  bool owns(const MuonMatrix& matrix) const {
    return matrix.owner == parameters.whole.rank;
  }

  // Returns, by matrix, whether it is updated. When it returns, every rank has come here, so no
  // rank still writes its part of a gradient, as clipping does.
  std::vector<bool> agree_on_gradients() const {
    const auto count = static_cast<std::int64_t>(matrices.size());
    const auto numbers = at::zeros({2 * count}, at::kDouble);
    auto* const has = numbers.mutable_data_ptr<double>();
    auto* const lacks = has + count;
    for (std::size_t m = 0; m < matrices.size(); ++m) {
      const auto& matrix = matrices[m];
      if (!matrix.slice.defined()) {
        continue;
      }
      const auto gradient =
          optim::usable_gradient(kMuon, {matrix.name, matrix.slice});
      (gradient.defined() ? has : lacks)[m] = 1.0;
      if (!gradient.defined()) {
        continue;
      }
      if (!matrix.shared_gradient.defined()) {
        matrix.slice.mutable_grad() = gradient;
      } else if (const auto place = matrix.gradient_of_slice();
                 place.const_data_ptr() != gradient.const_data_ptr()) {
        place.copy_(gradient);  // The user has set it.
      }
    }
    all_reduce_max(numbers);
    std::vector<bool> due;
    for (std::size_t m = 0; m < matrices.size(); ++m) {
      SHERD_CHECK(
          has[m] == 0.0 || lacks[m] == 0.0, "[optim] ", kMuon,
          ": expected a gradient of \"", matrices[m].name,
          "\" on every rank or on none, found some ranks without");
      due.push_back(has[m] != 0.0);
    }
    return due;
  }

  // If ranks share no gradients: makes them whole on the owners. Returns those matrices.
  std::vector<optim::CutMatrix*> gather_gradients(
      const std::vector<bool>& due) {
    std::vector<optim::CutMatrix*> moved;
    for (std::size_t m = 0; m < matrices.size(); ++m) {
      auto& matrix = matrices[m];
      if (due[m] && matrix.is_cut()) {
        matrix.part =
            matrix.slice.defined() ? matrix.slice.grad() : at::Tensor();
        moved.push_back(&matrix);
      }
    }
    optim::gather_parts(parameters.whole, moved);
    return moved;
  }

  // Writes the update into the memory of the gradient, which may be of a narrower dtype.
  void make_update(MuonMatrix& matrix) const {
    const auto room = matrix.gradient();
    const auto gradient = room.to(matrix.options.dtype());
    matrix.allocate_momentum();
    matrix.momentum.lerp_(gradient, 1.0 - options.momentum);
    const auto direction = options.nesterov
        ? gradient.lerp(matrix.momentum, options.momentum)
        : matrix.momentum;
    room.copy_(optim::orthogonalised(direction, options));
  }

  void apply_update(const MuonMatrix& matrix) const {
    const auto rows = static_cast<double>(matrix.rows);
    const auto columns = static_cast<double>(matrix.columns);
    const double scale = options.scale == MuonScale::kOriginal
        ? std::sqrt(std::max(1.0, rows / columns))
        : 0.2 * std::sqrt(std::max(rows, columns));
    auto values = matrix.slice;
    values.mul_(1.0 - options.learning_rate * options.weight_decay);
    values.add_(matrix.gradient_of_slice(), -options.learning_rate * scale);
    values.mutable_grad().reset();
  }

  void all_reduce_max(const at::Tensor& numbers) const {
    if (parameters.all_reduce_max) {
      parameters.all_reduce_max(numbers);
    }
  }

  MuonOptions options;
  NamedParameters parameters;
  std::shared_ptr<void> claim;  // While held, this optimizer publishes.
  std::vector<MuonMatrix> matrices;
};

Muon::Muon(NamedParameters parameters, const MuonOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parameters), options)) {}
Muon::~Muon() = default;
Muon::Muon(Muon&&) noexcept = default;
Muon& Muon::operator=(Muon&&) noexcept = default;

// If ranks share gradients: between the two all-reduces a matrix's gradient belongs to its owner,
// and outside of them each rank's part belongs to that rank, so no rank writes what another reads.
void Muon::step() {
  const at::NoGradGuard no_grad;
  auto& matrices = impl_->matrices;
  const auto due = impl_->agree_on_gradients();
  const GatheredGradients until_the_end{matrices};
  const auto moved = impl_->gather_gradients(due);
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    if (due[m] && impl_->owns(matrices[m])) {
      impl_->make_update(matrices[m]);
    }
  }
  if (moved.empty()) {
    impl_->all_reduce_max(at::zeros({1}, at::kDouble));
  } else {
    // Sends back the updates that the owners made of gathered gradients.
    optim::scatter_parts(impl_->parameters.whole, moved);
  }
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    if (due[m] && matrices[m].slice.defined()) {
      impl_->apply_update(matrices[m]);
    }
  }
  if (impl_->parameters.publish) {
    impl_->parameters.publish();
  }
}

void Muon::zero_grad() { optim::drop_gradients(impl_->parameters); }

void Muon::set_learning_rate(double learning_rate) {
  optim::check_not_negative(kMuon, "learning_rate", learning_rate);
  impl_->options.learning_rate = learning_rate;
}

double Muon::learning_rate() const { return impl_->options.learning_rate; }

std::vector<std::string> Muon::names() const {
  std::vector<std::string> names;
  for (const auto& matrix : impl_->matrices) {
    if (impl_->owns(matrix)) {
      names.push_back(matrix.name);
    }
  }
  return names;
}

at::Tensor Muon::momentum_buffer(const std::string& name) {
  auto& matrices = impl_->matrices;
  const auto found = std::ranges::find_if(
      matrices, [&](const MuonMatrix& matrix) { return matrix.name == name; });
  SHERD_CHECK(
      found != matrices.end(), "[optim] ", kMuon,
      ": expected the name of one of its matrices, found \"", name, "\"");
  SHERD_CHECK(
      impl_->owns(*found), "[optim] ", kMuon, ": expected a matrix of rank ",
      impl_->parameters.whole.rank, ", found \"", name, "\", which rank ",
      found->owner, " of those that share it has");
  found->allocate_momentum();
  return found->momentum;
}

std::vector<OptimizerTensor> Muon::tensors(const std::set<std::string>& also) {
  std::vector<OptimizerTensor> tensors;
  for (const auto& matrix : impl_->matrices) {
    if (impl_->owns(matrix) &&
        (also.contains(matrix.name) || matrix.momentum.defined())) {
      tensors.push_back(
          {matrix.name, "momentum_buffer", momentum_buffer(matrix.name)});
    }
  }
  return tensors;
}

}  // namespace sherd
