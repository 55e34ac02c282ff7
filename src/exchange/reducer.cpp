// SPDX-License-Identifier: Apache-2.0
#include "exchange/reducer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include "base/check.h"
#include "exchange/backward_status.h"

namespace sherd::exchange {
namespace {

void zero_elements(
    const at::Tensor& flat, std::int64_t begin, std::int64_t end) {
  if (end > begin && !flat.is_cpu()) {
    flat.narrow(0, begin, end - begin).zero_();
  } else if (end > begin) {
    const auto size = static_cast<std::int64_t>(flat.element_size());
    std::memset(
        static_cast<char*>(flat.mutable_data_ptr()) + begin * size, 0,
        static_cast<std::size_t>((end - begin) * size));
  }
}

at::Tensor dense_of(const at::Tensor& gradient) {
  const auto dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  return dense.requires_grad() ? dense.detach() : dense;
}

}  // namespace

Reducer::Reducer(
    const std::vector<UnitSpec>& units,
    const std::vector<UnitParameter>& parameters,
    Exchange& exchange,
    ReducedGradients& reduced,
    double scale,
    int under_way_max)
    : specs_(units),
      parameters_(parameters),
      exchange_(exchange),
      reduced_(reduced),
      scale_(scale),
      under_way_max_(under_way_max),
      trainable_(units.size()),
      states_(units.size()),
      idle_(units.size(), false),
      used_by_any_(units.size(), false),
      left_out_(units.size(), false),
      starts_frozen_(units.size(), true) {
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const auto& parameter = parameters[p];
    const auto u = static_cast<std::size_t>(parameter.unit);
    const auto& flat = units[u].flats[static_cast<std::size_t>(parameter.flat)];
    targets_.push_back(
        {parameter.unit, parameter.flat,
         may_bypass_slot(flat, parameter.position), parameter.trainable,
         flat.layout.offsets[static_cast<std::size_t>(parameter.position)]});
    if (parameter.trainable >= 0) {
      starts_frozen_[u] = starts_frozen_[u] && flat.starts_frozen;
      trainable_[u].resize(std::max(
          trainable_[u].size(),
          static_cast<std::size_t>(parameter.trainable) + 1));
      trainable_[u][static_cast<std::size_t>(parameter.trainable)] =
          static_cast<int>(p);
    }
  }
  kept_.resize(targets_.size());
  may_be_kept_.resize(targets_.size(), false);
  dormant_ = starts_frozen_;
  set_order({});
  reset();
}

void Reducer::set_order(const std::vector<UnitId>& order) {
  std::vector<bool> known(states_.size(), false);
  order_.clear();
  const auto add = [&](UnitId unit) {
    const auto u = static_cast<std::size_t>(unit);
    if (!known[u] && !trainable_[u].empty() && !dormant_[u]) {
      order_.push_back(unit);
    }
    known[u] = true;
  };
  std::ranges::for_each(order, add);
  for (std::size_t u = 0; u < states_.size(); ++u) {
    add(static_cast<UnitId>(u));
  }
  std::stable_partition(order_.begin(), order_.end(), [&](UnitId unit) {
    return !is_idle(unit);
  });
}

void Reducer::expect(const std::vector<bool>& unexpected) {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    auto& unit = states_[u];
    for (std::size_t t = 0; t < trainable_[u].size(); ++t) {
      const auto p = static_cast<std::size_t>(trainable_[u][t]);
      unit.awaited[t] = parameters_[p].tensor.requires_grad() &&
          !(p < unexpected.size() && unexpected[p]);
    }
    unit.missing = static_cast<int>(std::ranges::count(unit.awaited, true));
  }
}

void Reducer::reset() {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    auto& unit = states_[u];
    unit.arrived.assign(trainable_[u].size(), false);
    unit.awaited.assign(trainable_[u].size(), true);
    unit.filled.assign(trainable_[u].size(), false);
    unit.used.assign(trainable_[u].size(), false);
    unit.elsewhere.assign(trainable_[u].size(), {});
    unit.missing = static_cast<int>(trainable_[u].size());
    unit.reduced = false;
    unit.wakes = false;
  }
  next_ = 0;
  started_ = false;
}

void Reducer::open(UnitId unit) {
  auto& now = state(unit);
  if (now.slot.empty()) {
    now.slot = exchange_.gradient_slot(unit);
    zero_padding(unit);
    if (now.reduced) {  // A late one: everything else counts as zero.
      reset_arrivals(unit);
    }
  }
}

void Reducer::reset_arrivals(UnitId unit) {
  auto& now = state(unit);
  std::fill(now.arrived.begin(), now.arrived.end(), false);
  std::fill(now.filled.begin(), now.filled.end(), false);
  std::fill(now.used.begin(), now.used.end(), false);
  std::fill(now.elsewhere.begin(), now.elsewhere.end(), at::Tensor());
  std::fill(now.awaited.begin(), now.awaited.end(), true);
  now.missing = static_cast<int>(now.arrived.size());
}

void Reducer::zero_padding(UnitId unit) {
  const auto u = static_cast<std::size_t>(unit);
  for (std::size_t f = 0; f < specs_[u].flats.size(); ++f) {
    const auto& spec = specs_[u].flats[f];
    if (!spec.trainable) {
      continue;
    }
    std::int64_t end = 0;
    for (std::size_t p = 0; p < spec.layout.offsets.size(); ++p) {
      zero_elements(state(unit).slot[f], end, spec.layout.offsets[p]);
      end = spec.layout.offsets[p] + spec.layout.numels[p];
    }
    zero_elements(state(unit).slot[f], end, spec.layout.numel);
  }
}

Status Reducer::arrived(int parameter, const at::Tensor& gradient, bool fresh) {
  const at::NoGradGuard no_grad;
  started_ = true;
  const auto& target = targets_[static_cast<std::size_t>(parameter)];
  SHERD_ASSERT(target.trainable >= 0);
  if (gradient.defined() || !state(target.unit).reduced) {
    open(target.unit);
  } else {
    return {};  // Nothing, and late: nothing to keep.
  }
  auto& unit = state(target.unit);
  if (unit.reduced && reduced_.updates_in_backward()) {
    return {
        ErrorCode::kFailedPrecondition,
        str("[exchange] parameter ",
            parameters_[static_cast<std::size_t>(parameter)].name,
            " has a second gradient in one backward, after an optimizer, or a "
            "sum across replicas, has taken the first; use neither in_backward "
            "nor last_backward()")};
  }
  const auto t = static_cast<std::size_t>(target.trainable);
  if (gradient.defined()) {
    place(parameter, gradient);
    unit.filled[t] = true;
    unit.used[t] = unit.used[t] || fresh;
  }
  if (!unit.arrived[t]) {
    unit.arrived[t] = true;
    unit.missing -= unit.awaited[t] ? 1 : 0;
  }
  return unit.missing == 0 && !unit.reduced ? reduce_ready() : Status();
}

bool Reducer::has_arrived(int parameter) const {
  const auto& target = targets_[static_cast<std::size_t>(parameter)];
  return target.trainable >= 0 &&
      states_[static_cast<std::size_t>(target.unit)]
          .arrived[static_cast<std::size_t>(target.trainable)];
}

bool Reducer::may_have_gradient(int parameter) const {
  const auto p = static_cast<std::size_t>(parameter);
  return parameters_[p].tensor.requires_grad() || may_be_kept_[p] ||
      has_arrived(parameter);
}

void Reducer::fill_missing(UnitId unit) {
  open(unit);
  auto& now = state(unit);
  for (std::size_t t = 0; t < now.filled.size(); ++t) {
    if (now.filled[t]) {
      continue;
    }
    const auto p =
        static_cast<std::size_t>(trainable_[static_cast<std::size_t>(unit)][t]);
    const auto& target = targets_[p];
    zero_elements(
        now.slot[static_cast<std::size_t>(target.flat)], target.offset,
        target.offset + parameters_[p].tensor.numel());
  }
}

// The parameter's elements of the slot. One operator, since every small gradient takes it.
at::Tensor Reducer::room(int parameter, at::IntArrayRef sizes) {
  const auto& target = targets_[static_cast<std::size_t>(parameter)];
  const auto& slot =
      state(target.unit).slot[static_cast<std::size_t>(target.flat)];
  return slot.as_strided(
      sizes, c10::contiguous_strides(sizes),
      slot.storage_offset() + target.offset);
}

// A large gradient stays where autograd made it; so does each one of a device, where one call
// copies all of a flat.
void Reducer::place(int parameter, const at::Tensor& gradient) {
  const auto& target = targets_[static_cast<std::size_t>(parameter)];
  auto& unit = state(target.unit);
  const auto t = static_cast<std::size_t>(target.trainable);
  const auto dense = dense_of(gradient);
  const auto& slot = unit.slot[static_cast<std::size_t>(target.flat)];
  const bool fits = target.alone && dense.scalar_type() == slot.scalar_type();
  if (unit.filled[t]) {
    add(parameter, dense);
  } else if (dense.is_contiguous() && (fits || !dense.is_cpu())) {
    unit.elsewhere[t] = dense.view({-1});
  } else if (const auto to = room(parameter, dense.sizes());
             !dense.is_contiguous() ||
             to.const_data_ptr() != dense.const_data_ptr()) {
    to.copy_(dense);  // Unless autograd has added to the slot itself.
  }
}

// To the parameter's gradient: in the wider dtype of both, and rounded to that of the slot. A first
// gradient of another dtype goes into the slot before, as it does on the CPU.
void Reducer::add(int parameter, const at::Tensor& dense) {
  const auto& target = targets_[static_cast<std::size_t>(parameter)];
  auto& unit = state(target.unit);
  const auto to = room(parameter, dense.sizes());
  auto& elsewhere = unit.elsewhere[static_cast<std::size_t>(target.trainable)];
  if (elsewhere.defined() && elsewhere.scalar_type() == to.scalar_type()) {
    elsewhere = elsewhere.add(dense.reshape({-1})).to(to.scalar_type());
    return;
  }
  if (elsewhere.defined()) {
    to.copy_(std::exchange(elsewhere, {}).view(dense.sizes()));
  }
  to.add_(dense);
}

void Reducer::keep(int parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (!gradient.defined()) {
    return;
  }
  const auto dense = dense_of(gradient);
  auto& sum = kept_[static_cast<std::size_t>(parameter)];
  if (sum.defined()) {
    sum.add_(dense);
    return;
  }
  const bool narrow = c10::elementSize(dense.scalar_type()) <
      c10::elementSize(c10::ScalarType::Float);
  const auto dtype = narrow ? c10::ScalarType::Float : dense.scalar_type();
  sum = at::empty(dense.sizes(), dense.options().dtype(dtype));
  sum.copy_(dense);
}

void Reducer::add_kept(UnitId unit) {
  auto& now = state(unit);
  for (std::size_t t = 0; t < now.used.size(); ++t) {
    const auto p =
        static_cast<std::size_t>(trainable_[static_cast<std::size_t>(unit)][t]);
    const auto sum = std::exchange(kept_[p], {});
    if (!sum.defined()) {
      continue;
    }
    add(static_cast<int>(p), sum);
    now.used[t] = true;
  }
}

void Reducer::drop_all_kept() {
  kept_.assign(kept_.size(), {});
  may_be_kept_.assign(may_be_kept_.size(), false);
}

Result<bool> Reducer::finish_kept(const std::string& aborted, bool departed) {
  const auto outcome = round(aborted, departed);
  if (!outcome.ok()) {
    drop_all_kept();
    return outcome.status();
  }
  for (std::size_t p = 0; p < may_be_kept_.size(); ++p) {
    may_be_kept_[p] = may_be_kept_[p] || keeps(static_cast<int>(p)) ||
        parameters_[p].tensor.requires_grad();
  }
  return outcome.value().diverged;
}

Status Reducer::reduce(UnitId unit) {
  fill_missing(unit);
  add_kept(unit);
  auto& now = state(unit);
  ReduceOptions options;
  options.scale = scale_;
  options.under_way_max = under_way_max_;
  options.patient = without_inputs_;
  options.partial = partial_;
  options.accumulate = now.reduced || partial_
      ? std::vector<bool>(now.slot.size(), now.reduced)
      : reduced_.accumulation(unit);
  options.used = now.used;
  options.gradients = now.elsewhere;
  options.sinks = reduced_.sinks(unit);
  std::fill(now.elsewhere.begin(), now.elsewhere.end(), at::Tensor());
  now.slot.clear();
  now.reduced = true;
  now.wakes = false;
  return exchange_.start_reduce(unit, options);
}

Status Reducer::reduce_ready() {
  while (next_ < order_.size() && state(order_[next_]).missing == 0 &&
         !is_idle(order_[next_])) {
    SHERD_RETURN_IF_FAILED(reduce(order_[next_++]));
  }
  return {};
}

// Idle units wait until every other one was started here: a rank that is still in its backward may
// wait for those, and so for this rank, before it comes to the question.
Status Reducer::reduce_rest() {
  left_out_.assign(left_out_.size(), false);
  for (; next_ < order_.size() && !is_idle(order_[next_]); ++next_) {
    SHERD_RETURN_IF_FAILED(reduce(order_[next_]));
  }
  const std::vector<UnitId> idle(
      order_.begin() + static_cast<std::ptrdiff_t>(next_), order_.end());
  next_ = order_.size();
  const auto wanted = ask_who_uses(idle);
  for (std::size_t i = 0; wanted.ok() && i < idle.size(); ++i) {
    if (!wanted.value()[i]) {
      left_out_[static_cast<std::size_t>(idle[i])] = true;
      state(idle[i]).slot.clear();
    } else {
      SHERD_RETURN_IF_FAILED(reduce(idle[i]));
    }
  }
  return wanted.status();
}

// Collective. For each of the units, which are the same on all ranks, whether any rank uses it.
Result<std::vector<bool>> Reducer::ask_who_uses(
    const std::vector<UnitId>& units) {
  std::vector<bool> wanted(units.size(), false);
  if (units.empty()) {
    return wanted;
  }
  std::vector<double> used;
  for (const auto unit : units) {
    used.push_back(is_any_set(state(unit).used) ? 1.0 : 0.0);
  }
  const auto by_any =
      all_reduce(exchange_, std::move(used), ScalarReduceOp::kMax);
  SHERD_RETURN_IF_FAILED(by_any.status());
  for (std::size_t i = 0; i < units.size(); ++i) {
    wanted[i] = by_any.value()[i] != 0.0;
  }
  return wanted;
}

// Whether this rank has, or has kept, a gradient of the unit.
bool Reducer::is_used(UnitId unit) const {
  const auto u = static_cast<std::size_t>(unit);
  const auto& used = states_[u].used;
  return is_any_set(used) ||
      std::ranges::any_of(trainable_[u], [&](int p) { return keeps(p); });
}

// One end of backward: starts what is left and learns who is late.
Result<BackwardOutcome> Reducer::round(
    const std::string& aborted,
    bool departed,
    std::function<Status()> reduce_meanwhile) {
  BackwardEnd end;
  end.aborted = aborted;
  end.departed = departed;
  end.whole_units = whole_units_;
  end.has_hooks = reduced_.has_hooks();
  end.reduce_meanwhile = std::move(reduce_meanwhile);
  for (const auto& unit : states_) {
    end.late.push_back(unit.wakes || (unit.reduced && !unit.slot.empty()));
  }
  auto outcome = exchange_.end_backward(end);
  any_hooks_ = outcome.ok() && outcome.value().has_hooks;
  for (std::size_t u = 0; u < states_.size() && outcome.ok(); ++u) {
    const auto& used = outcome.value().used[u];
    reduced_.set_gradients(static_cast<UnitId>(u), used);
    used_by_any_[u] = used_by_any_[u] || is_any_set(used);
  }
  return outcome;
}

Result<bool> Reducer::finish(const std::string& aborted, bool departed) {
  const at::NoGradGuard no_grad;
  used_by_any_.assign(used_by_any_.size(), false);
  for (std::size_t u = 0; u < states_.size(); ++u) {
    states_[u].wakes = dormant_[u] && is_used(static_cast<UnitId>(u));
  }
  auto result = all_rounds(aborted, departed);
  may_be_kept_.assign(may_be_kept_.size(), false);
  for (std::size_t u = 0; leaves_out_unused_ && u < idle_.size(); ++u) {
    idle_[u] = result.ok() && !used_by_any_[u];
  }
  const auto dormant_before = dormant_;
  for (std::size_t u = 0; result.ok() && u < dormant_.size(); ++u) {
    // Partial sums wait for a reduction that is none.
    dormant_[u] = starts_frozen_[u] && !used_by_any_[u] &&
        !(partial_ && states_[u].reduced);
  }
  if (leaves_out_unused_) {
    set_order({});
  } else if (dormant_ != dormant_before) {
    // The next backward may come without a forward, and so without an order of its own.
    set_order(std::vector(order_));
  }
  reset();
  if (!result.ok()) {
    // What was kept of ordinary units is in the sums that were dropped; what was kept of dormant ones
    // has waited for a late round.
    drop_all_kept();
    if (!partial_) {
      reduced_.clear_gradients();
    }
  }
  return result;
}

Result<bool> Reducer::all_rounds(const std::string& aborted, bool departed) {
  std::function<Status()> meanwhile;
  if (without_inputs_) {
    meanwhile = [this] { return reduce_rest(); };
  } else {
    SHERD_RETURN_IF_FAILED(reduce_rest());
  }
  const auto first = round(aborted, departed, std::move(meanwhile));
  SHERD_RETURN_IF_FAILED(first.status());
  const auto& late = first.value().late;
  if (!is_any_set(late)) {
    return first.value().diverged;
  }
  for (std::size_t u = 0; u < late.size(); ++u) {
    if (!late[u]) {
      continue;
    }
    SHERD_RETURN_IF_FAILED(reduce(static_cast<UnitId>(u)));
  }
  const auto second = round(aborted, departed);
  SHERD_RETURN_IF_FAILED(second.status());
  return first.value().diverged || second.value().diverged;
}

}  // namespace sherd::exchange
