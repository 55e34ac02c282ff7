// SPDX-License-Identifier: Apache-2.0
#include "exchange/hybrid_exchange.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/status.h"
#include "device/host_memory.h"
#include "device/memory.h"
#include "exchange/backward_status.h"
#include "exchange/buffer_pool.h"
#include "exchange/gradient_chunks.h"
#include "exchange/private_buffers.h"

namespace sherd::exchange {
namespace {

// Memory of LibTorch's allocator, of the stream that is current when it is taken.
BufferSource source_of_tensors(c10::Device device) {
  auto taken = std::make_shared<std::map<void*, at::Tensor>>();
  return {
      .take = [=](std::int64_t bytes) -> void* {
        const auto memory = at::empty(
            {std::max<std::int64_t>(bytes, 1)},
            at::device(device).dtype(at::kByte));
        auto* address = memory.mutable_data_ptr();
        taken->emplace(address, memory);
        return address;
      },
      .give_back = [=](void* memory,
                       std::int64_t /*bytes*/) { taken->erase(memory); }};
}

class HybridExchange final : public Exchange {
 public:
  HybridExchange(
      std::unique_ptr<Exchange> within,
      std::unique_ptr<Exchange> across,
      const MeshPosition& position,
      ReduceAcross reduce_across,
      c10::Device device)
      : position_(position),
        scale_across_(
            reduce_across == ReduceAcross::kInAnyOrder
                ? 1.0
                : 1.0 / position.replicas),
        reduce_across_(reduce_across),
        device_(device),
        partial_pool_(
            0,
            device.is_cpu() ? BufferSource::of_system()
                            : source_of_tensors(device)),
        within_(std::move(within)),
        across_(std::move(across)) {}
  ~HybridExchange() override {
    if (error_.ok() && (reducing_ || !gathering_.empty())) {
      close(
          {ErrorCode::kPeerLost,
           str("its exchange went with ", reducing_ ? "gradients" : "a gather",
               " under way")});
    }
    if (reduce_across_ == ReduceAcross::kByShardAxis) {
      within_.reset();  // Its sums write what belongs to the other axis.
    }
  }
  HybridExchange(const HybridExchange&) = delete;
  HybridExchange& operator=(const HybridExchange&) = delete;

  Status open(const ModelSpec& model) override {
    model_ = model_across(model, position_);
    units_.resize(model.units.size());
    // Across first: a host that is lost meanwhile may be the store's, without
    // which ranks cannot find each other's memory.
    auto status = across_->open(model_);
    if (status.ok()) {
      status = within_->open(model_within(model, position_));
    }
    if (status.ok()) {
      // Each replica is of one mind: the others learn of one that is not.
      status =
          exchange::all_reduce(*across_, {0.0}, ScalarReduceOp::kMax).status();
    }
    if (status.ok() && model.replicates()) {
      status = {
          ErrorCode::kInvalidArgument,
          "[exchange] replicated units have no shard axis; expected sharded "
          "ones"};
    }
    for (const auto& unit : model_.units) {
      copied_shard_bytes_ += position_.both_axes
          ? flat_offsets(unit, &FlatSpec::shard_dtype).back()
          : 0;
    }
    return keep(status);
  }

  ShardMemory shard_memory(UnitId unit, int flat) override {
    if (!position_.both_axes) {
      return within_->shard_memory(unit, flat);
    }
    auto memory = across_->shard_memory(unit, flat);
    memory.whole_gradient.reset();  // That of one part of the shard axis.
    return memory;
  }

  Status start_unshard(UnitId unit, const UnshardOptions& options) override {
    SHERD_RETURN_IF_FAILED(error_);
    auto status = begin();
    gathering_.insert(unit);
    return keep(status.ok() ? within_->start_unshard(unit, options) : status);
  }

  Result<std::vector<void*>> wait_for_unshard(UnitId unit) override {
    SHERD_RETURN_IF_FAILED(error_);
    auto addresses = within_->wait_for_unshard(unit);
    if (!addresses.ok()) {
      return keep(addresses.status());
    }
    gathering_.erase(unit);
    return addresses;
  }

  void reshard(UnitId unit) override { within_->reshard(unit); }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return within_->gradient_slot(unit);
  }

  Status start_reduce(UnitId unit, const ReduceOptions& options) override;

  Result<BackwardOutcome> end_backward(const BackwardEnd& end) override;

  // Where replicas are equal nothing is gathered across, but one that leaves a
  // publish out shall be found.
  Status publish(std::uint64_t generation) override {
    SHERD_RETURN_IF_FAILED(error_);
    begun_ = true;
    auto status = across_->publish(generation);
    if (status.ok()) {
      status = gather_shards();
    }
    return keep(status.ok() ? within_->publish(generation) : status);
  }

  Status all_reduce(const at::Tensor& values, ScalarReduceOp op) override {
    SHERD_RETURN_IF_FAILED(error_);
    auto status = begin();
    if (status.ok() && op == ScalarReduceOp::kSame) {
      return keep(compare(values));
    }
    if (status.ok()) {
      status = within_->all_reduce(values, op);
    }
    const bool done =
        op == ScalarReduceOp::kSumOverOwners && !position_.both_axes;
    if (status.ok() && !done) {
      status = across_->all_reduce(values, op);
    }
    return keep(status);
  }

  // The sums of the ranks within are what goes across.
  void begin_backward() override { within_->begin_backward(); }

  void synchronize() override {
    within_->synchronize();
    across_->synchronize();
  }

  std::vector<UnitId> progress() override {
    auto ended = within_->progress();
    if (error_.ok()) {
      (void)keep(sum_across(ended));
    }
    return ended;
  }

  void close(const Status& reason) override {
    if (!error_.ok()) {
      return;
    }
    error_ = reason.ok()
        ? Status(ErrorCode::kFailedPrecondition, "[exchange] it was closed")
        : reason;
    close_both(reason);
  }

  bool one_sided() const override { return within_->one_sided(); }

  const ExchangeCounters& counters() const override {
    counters_ = within_->counters();
    const auto& others = across_->counters();
    counters_.reduces_under_way_peak = std::max(
        counters_.reduces_under_way_peak, others.reduces_under_way_peak);
    counters_.gather_sent_bytes += others.gather_sent_bytes;
    counters_.gradient_bytes +=
        others.gradient_bytes + partial_pool_.allocated_bytes();
    counters_.gradient_bytes_peak +=
        others.gradient_bytes_peak + partial_pool_.allocated_bytes_peak();
    counters_.copied_shard_bytes += copied_shard_bytes_;
    return counters_;
  }

 private:
  struct UnitState {
    // By flat: sums within this replica that must not go to the sharded gradient, because it still
    // holds another sum or has other elements. Allocated when first needed, on the host if sharded
    // gradients are there.
    std::vector<at::Tensor> partial;
    void* memory = nullptr;  // Of `partial`, from the pool; else null.
    bool kept = false;       // `partial` has what partial reductions left.
    std::vector<bool> kept_used;
  };
  // A reduction that replicas have not begun.
  struct Waiting {
    UnitId unit = 0;
    std::vector<at::Tensor> sums;  // By flat.
    std::vector<bool> accumulate;
    int under_way_max = 0;
    bool made = false;  // The sums.
  };

  UnitState& state(UnitId unit) {
    return units_[static_cast<std::size_t>(unit)];
  }
  // The first failure ends both. Returns `status`.
  Status keep(Status status) {
    if (!status.ok() && error_.ok()) {
      error_ = status;
      close_both(error_);
    }
    return status;
  }

  // Across first: within, a thread may be waiting for a message of that axis.
  void close_both(const Status& reason) {
    across_->close(reason);
    within_->close(reason);
  }

  // What open() let the first axis take for published were no values yet.
  Status begin() {
    if (std::exchange(begun_, true)) {
      return {};
    }
    SHERD_RETURN_IF_FAILED(barrier_across_owners());
    SHERD_RETURN_IF_FAILED(gather_shards());
    // A reduction may have let the other axis take what was there before for
    // published, too.
    const bool reads_in_order = within_->one_sided() || !device_.is_cpu();
    return position_.both_axes && reads_in_order ? within_->publish(0)
                                                 : Status();
  }
  Status barrier_across_owners();
  Status gather_shards();
  const std::vector<at::Tensor>& partial(UnitId unit);
  void take_partial_from_pool(UnitId unit);
  void release(const std::vector<UnitId>& units);
  // Once the caller's stream comes after all sums.
  void release_all() {
    std::vector<UnitId> all(units_.size());
    std::iota(all.begin(), all.end(), 0);
    release(all);
  }
  std::vector<at::Tensor> sharded_gradients(UnitId unit);
  SumAcross across_by_shard_axis(
      UnitId unit, const std::vector<bool>& accumulate);
  Status sum_across(const std::vector<UnitId>& ended);
  Status sum_across(const Waiting& waiting);
  void take_ended_across();
  Result<BackwardOutcome> settle(const Result<BackwardOutcome>& everywhere);
  Status compare(const at::Tensor& values);

  const MeshPosition position_;
  const double scale_across_;  // The part of a reduction's scale.
  const ReduceAcross reduce_across_;
  const c10::Device device_;
  ModelSpec model_;  // Of `across_`.
  BufferPool partial_pool_;
  std::vector<UnitState> units_;
  std::unique_ptr<Exchange> within_;
  // Declared after every member but plain values, so that it is destroyed before them: its messages
  // use memory that the other members own.
  std::unique_ptr<Exchange> across_;
  std::deque<Waiting> waiting_;  // In the order started.
  int across_under_way_ = 0;     // At most.
  bool at_end_ = false;  // The replica has come to the end of its backward.
  std::set<UnitId> gathering_;
  std::uint64_t backward_ = 0;  // How many ended, with their late rounds.
  bool begun_ = false;          // Shards were gathered across, if ever.
  bool reducing_ = false;       // Since the last backward ended.
  std::set<UnitId> reduced_, reduced_partially_;  // Likewise.
  std::int64_t copied_shard_bytes_ = 0;
  Status error_;
  mutable ExchangeCounters counters_;
};

const std::vector<at::Tensor>& HybridExchange::partial(UnitId unit) {
  auto& now = state(unit);
  if (!now.partial.empty()) {
    return now.partial;
  }
  if (!model_.shards_on_host) {
    take_partial_from_pool(unit);
    return now.partial;
  }
  // LibTorch keeps pinned memory itself, and knows which copies still use it.
  for (const auto& flat : model_.unit(unit).flats) {
    now.partial.push_back(
        flat.trainable
            ? device::empty_on_host(
                  {flat.layout.numel}, flat.gradient_dtype(), device_)
            : at::Tensor());
  }
  return now.partial;
}

void HybridExchange::take_partial_from_pool(UnitId unit) {
  auto& now = state(unit);
  const auto& spec = model_.unit(unit);
  now.memory = partial_pool_.borrow(
      flat_offsets(spec, &FlatSpec::gradient_dtype).back());
  now.partial = flats_at(
      now.memory, spec, &FlatSpec::gradient_dtype, device_,
      /*only_trainable=*/true);
}

// If every reduction needs a buffer, other units can use a unit's buffer once its sum across is
// made.
void HybridExchange::release(const std::vector<UnitId>& units) {
  for (const auto unit : units) {
    auto& now = state(unit);
    if (position_.both_axes && !now.partial.empty() && !now.kept) {
      now.partial.clear();
      if (now.memory != nullptr) {
        partial_pool_.give_back(std::exchange(now.memory, nullptr));
      }
    }
  }
}

// Gathers the new values of this rank's shard within its replica from the ranks that own its parts.
Status HybridExchange::gather_shards() {
  const auto units = static_cast<UnitId>(units_.size());
  const auto start = [&](UnitId unit) {
    return unit < units ? across_->start_unshard(unit, {}) : Status();
  };
  if (!position_.both_axes) {
    return {};
  }
  SHERD_RETURN_IF_FAILED(start(0));
  for (UnitId unit = 0; unit < units; ++unit) {
    SHERD_RETURN_IF_FAILED(start(unit + 1));  // One ahead.
    const auto whole = across_->wait_for_unshard(unit);
    SHERD_RETURN_IF_FAILED(whole.status());
    for (std::size_t f = 0; f < model_.unit(unit).flats.size(); ++f) {
      const auto& flat = model_.unit(unit).flats[f];
      within_->shard_memory(unit, static_cast<int>(f))
          .shard.copy_(
              device::tensor_at(
                  whole.value()[f], flat.layout.numel,
                  at::device(device_).dtype(flat.dtype)),
              /*non_blocking=*/model_.shards_on_host);
    }
    across_->reshard(unit);
  }
  // Shards were read where their owners write: nobody does before all have.
  return barrier_across_owners();
}

Status HybridExchange::barrier_across_owners() {
  return position_.both_axes && across_->one_sided()
      ? exchange::all_reduce(*across_, {0.0}, ScalarReduceOp::kMax).status()
      : Status();
}

std::vector<at::Tensor> HybridExchange::sharded_gradients(UnitId unit) {
  std::vector<at::Tensor> gradients;
  for (std::size_t f = 0; f < model_.unit(unit).flats.size(); ++f) {
    gradients.push_back(shard_memory(unit, static_cast<int>(f)).gradient);
  }
  return gradients;
}

// Where the sharded gradient has nothing that must stay, it takes the sum of
// this replica, and then that of all, in place.
Status HybridExchange::start_reduce(UnitId unit, const ReduceOptions& options) {
  SHERD_RETURN_IF_FAILED(error_);
  reducing_ = true;
  auto& now = state(unit);
  ReduceOptions mine = options;
  mine.partial = false;
  mine.scale = options.scale / scale_across_;
  mine.accumulate.assign(options.accumulate.size(), now.kept);
  if (position_.both_axes || options.partial || now.kept ||
      is_any_set(options.accumulate)) {
    mine.into = partial(unit);
  }
  (options.partial ? reduced_partially_ : reduced_).insert(unit);
  now.kept = options.partial;
  const bool goes_across = !options.partial;
  if (goes_across && reduce_across_ == ReduceAcross::kByShardAxis) {
    mine.across = across_by_shard_axis(unit, options.accumulate);
  } else if (goes_across) {
    waiting_.push_back(
        {unit, mine.into.empty() ? sharded_gradients(unit) : mine.into,
         options.accumulate, options.under_way_max, /*made=*/false});
  }
  auto status = within_->start_reduce(unit, mine);
  return keep(status.ok() ? sum_across(within_->progress()) : status);
}

SumAcross HybridExchange::across_by_shard_axis(
    UnitId unit, const std::vector<bool>& accumulate) {
  const auto into = sharded_gradients(unit);
  for (const auto& gradient : into) {
    give_memory(gradient, model_.shards_on_host);
  }
  return {
      .model = &model_,
      .scale = scale_across_,
      .accumulate = accumulate,
      .into = into,
      .backward = backward_};
}

// Starts the sums across for the units in `ended`, and for earlier ones for which there was no
// room. It does not wait for other replicas before the end of backward, which could deadlock: they
// may be waiting for neighbours that need this rank first.
Status HybridExchange::sum_across(const std::vector<UnitId>& ended) {
  if (reduce_across_ == ReduceAcross::kByShardAxis) {
    return {};
  }
  for (auto& waiting : waiting_) {
    waiting.made =
        waiting.made || std::ranges::find(ended, waiting.unit) != ended.end();
  }
  take_ended_across();
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const bool room = next->under_way_max == 0 || at_end_ ||
        across_under_way_ < next->under_way_max;
    if (!next->made || !room) {
      if (reduce_across_ == ReduceAcross::kInOrder) {
        break;
      }
      ++next;
      continue;
    }
    const auto waiting = std::move(*next);
    next = waiting_.erase(next);
    ++across_under_way_;
    SHERD_RETURN_IF_FAILED(sum_across(waiting));
  }
  return {};
}

void HybridExchange::take_ended_across() {
  const auto ended = across_->progress();
  across_under_way_ -= static_cast<int>(ended.size());
  release(ended);
}

Status HybridExchange::sum_across(const Waiting& waiting) {
  const auto& unit = model_.unit(waiting.unit);
  const auto slot = across_->gradient_slot(waiting.unit);
  ReduceOptions options;
  options.scale = scale_across_;
  options.accumulate = waiting.accumulate;
  options.under_way_max = waiting.under_way_max;
  if (!position_.both_axes) {
    options.into = sharded_gradients(waiting.unit);
  }
  options.gradients.resize(trainable_parameters(unit));
  const auto chunks = chunks_of(unit);
  for (std::size_t f = 0; f < chunks.size(); ++f) {
    for (const auto& chunk : chunks[f]) {
      const auto from =
          waiting.sums[f].narrow(0, chunk.range.begin, chunk.range.numel());
      if (chunk.parameter >= 0 && from.scalar_type() == slot[f].scalar_type()) {
        options.gradients[static_cast<std::size_t>(chunk.parameter)] = from;
      } else {
        slot[f].narrow(0, chunk.range.begin, chunk.range.numel()).copy_(from);
      }
    }
  }
  // Who used what is known at the end, of the whole replica.
  options.used.assign(options.gradients.size(), false);
  return across_->start_reduce(waiting.unit, options);
}

// Both axes come to an end on every rank, whatever the first one says: a rank
// that gave up is heard of by its replica, and then by all the others.
Result<BackwardOutcome> HybridExchange::end_backward(const BackwardEnd& end) {
  SHERD_RETURN_IF_FAILED(error_);
  if (auto status = begin(); !status.ok()) {
    return keep(status);
  }
  const auto here = within_->end_backward(end);
  if (!here.ok() && here.status().code() != ErrorCode::kAborted) {
    return keep(here.status());
  }
  at_end_ = true;
  auto status = sum_across(within_->progress());
  at_end_ = false;
  SHERD_ASSERT(!status.ok() || waiting_.empty());
  BackwardEnd next;
  next.late.assign(units_.size(), false);
  if (here.ok()) {
    next.late = here.value().late;
    next.departed = here.value().diverged;
    next.has_hooks = here.value().has_hooks;
    next.used = here.value().used;
  } else {
    next.aborted = here.status().message();
    next.relayed_from_peer = true;
  }
  if (!status.ok()) {
    return keep(status);
  }
  const auto everywhere = across_->end_backward(next);
  if (!everywhere.ok() && everywhere.status().code() != ErrorCode::kAborted) {
    return keep(everywhere.status());
  }
  const auto outcome = settle(everywhere);
  take_ended_across();
  if (reduce_across_ == ReduceAcross::kByShardAxis) {
    release_all();
    // Only now, when all replicas are here, may the host wait for them.
    if (model_.shards_on_host && model_.host_reads_sums && !reduced_.empty()) {
      device::Stream::current(device_).record().synchronize();
    }
  }
  if (!outcome.ok() || !is_any_set(outcome.value().late)) {
    ++backward_;
  }
  reducing_ = false;
  reduced_.clear();
  reduced_partially_.clear();
  return outcome;
}

// A parameter that partial reductions used counts as used in the next one that
// is whole.
Result<BackwardOutcome> HybridExchange::settle(
    const Result<BackwardOutcome>& everywhere) {
  if (!everywhere.ok()) {
    for (auto& unit : units_) {
      unit.kept = false;
      unit.kept_used.clear();
    }
    return everywhere;
  }
  BackwardOutcome outcome = everywhere.value();
  for (const auto unit : reduced_partially_) {
    auto& used = outcome.used[static_cast<std::size_t>(unit)];
    add_marks(state(unit).kept_used, used);
    used.assign(used.size(), false);
  }
  for (const auto unit : reduced_) {
    add_marks(
        outcome.used[static_cast<std::size_t>(unit)],
        std::exchange(state(unit).kept_used, {}));
  }
  return outcome;
}

// If the ranks of a replica disagree on a number, they bring NaN, which equals no number, to the
// comparison across replicas.
Status HybridExchange::compare(const at::Tensor& values) {
  const auto mine = values.clone();
  SHERD_RETURN_IF_FAILED(within_->all_reduce(values, ScalarReduceOp::kSame));
  const auto* same = values.const_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    if (same[i] == 0.0) {
      mine.mutable_data_ptr<double>()[i] =
          std::numeric_limits<double>::quiet_NaN();
    }
  }
  auto status = across_->all_reduce(mine, ScalarReduceOp::kSame);
  values.copy_(mine);
  return status;
}

}  // namespace

std::unique_ptr<Exchange> make_hybrid_exchange(
    std::unique_ptr<Exchange> within,
    std::unique_ptr<Exchange> across,
    const MeshPosition& position,
    ReduceAcross reduce_across,
    c10::Device device) {
  return std::make_unique<HybridExchange>(
      std::move(within), std::move(across), position, reduce_across, device);
}

}  // namespace sherd::exchange
