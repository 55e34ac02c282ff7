// SPDX-License-Identifier: Apache-2.0
#include "exchange/comm_hook_unit_transport.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/return_if_failed.h"
#include "base/status_from_exception.h"
#include "base/worker_thread.h"
#include "exchange/gradient_chunks.h"

namespace sherd::exchange {
namespace {

constexpr double kRounding = 1e-12;

class CommHookUnitTransport final : public UnitTransport {
 public:
  CommHookUnitTransport(
      const ModelSpec& model,
      std::unique_ptr<UnitTransport> inner,
      std::shared_ptr<world::Transport> transport,
      ReduceHook hook)
      : model_(model),
        inner_(std::move(inner)),
        transport_(std::move(transport)),
        hook_(std::move(hook)) {}

  ShardMemory shard(UnitId unit, int flat) const override {
    return inner_->shard(unit, flat);
  }
  std::shared_ptr<UnshardedUnit> open_unit(
      UnitId unit,
      const UnshardOptions& options,
      std::uint64_t generation) override {
    return inner_->open_unit(unit, options, generation);
  }
  Status gather(const UnitGather& gather, UnshardedUnit* unsharded) override {
    return inner_->gather(gather, unsharded);
  }
  std::optional<world::Transfers> start_gather(
      const UnitGather& gather, UnshardedUnit* unsharded) override {
    return inner_->start_gather(gather, unsharded);
  }
  Status discard_shard(const UnitGather& gather, int owner) override {
    return inner_->discard_shard(gather, owner);
  }
  void gathered_by_all(
      const UnitGather& gather, const UnshardedUnit& unsharded) override {
    inner_->gathered_by_all(gather, unsharded);
  }
  bool has_secondary(UnitId unit, std::uint64_t generation) const override {
    return inner_->has_secondary(unit, generation);
  }
  void drop_unit(UnitId unit, const UnshardedUnit& unsharded) override {
    inner_->drop_unit(unit, unsharded);
  }
  void publish(std::uint64_t generation) override {
    inner_->publish(generation);
  }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    auto& slot = slots_[unit];
    if (!slot.empty()) {
      return slot;
    }
    const bool in_place = may_reduce_in_place(unit);
    for (std::size_t f = 0; f < model_.unit(unit).flats.size(); ++f) {
      const auto& flat = model_.unit(unit).flats[f];
      if (!flat.trainable) {
        slot.emplace_back();
      } else if (in_place) {
        slot.push_back(inner_->shard(unit, static_cast<int>(f)).gradient);
      } else {
        slot.push_back(at::empty({flat.layout.numel}, flat.slot_dtype()));
        bytes_ += static_cast<std::int64_t>(slot.back().nbytes());
      }
    }
    bytes_peak_ = std::max(bytes_peak_, bytes_);
    return slot;
  }

  void start_reduce(UnitId unit, const ReduceOptions& options) override {
    wait_for_room(options);
    reduced_once_.insert(unit);
    auto slot = slots_.extract(unit);
    SHERD_ASSERT(!slot.empty());
    last_job_ = worker_.post(
        [this, unit, options, flats = std::move(slot.mapped())]() mutable {
          return reduce(unit, options, std::move(flats));
        });
    under_way_peak_ = std::max(
        under_way_peak_,
        static_cast<std::int64_t>(last_job_ - worker_.ended()));
  }

  Status progress() override {
    const std::lock_guard lock(mu_);
    ended_.insert(ended_.end(), reduced_.begin(), reduced_.end());
    reduced_.clear();
    bytes_ -= std::exchange(bytes_given_back_, 0);
    return worker_.failure();
  }
  std::vector<UnitId> take_ended() override {
    return std::exchange(ended_, {});
  }
  Status finish() override {
    auto status = worker_.wait(last_job_);
    room_wait_timed_out_ = false;
    (void)progress();
    return status;
  }
  bool reducing() const override { return worker_.busy(); }
  void backward_ended() override { reduced_once_.clear(); }

  // The hook's messages end with the transport.
  void abandon(const Status& why) override {
    inner_->abandon(why);
    worker_.settle();
  }

  void add_to(ExchangeCounters& counters) const override {
    inner_->add_to(counters);
    counters.gradient_bytes = bytes_;
    counters.gradient_bytes_peak = bytes_peak_;
    counters.reduces_under_way_peak = under_way_peak_;
  }

 private:
  // A late round adds to what the first has left there.
  bool may_reduce_in_place(UnitId unit) const {
    const auto& flats = model_.unit(unit).flats;
    return model_.overwrites_gradients && model_.replicates() &&
        !reduced_once_.contains(unit) &&
        std::ranges::all_of(flats, [](const FlatSpec& flat) {
             return !flat.trainable || flat.slot_dtype() == flat.dtype;
           });
  }

  // Ranks reduce in the same order, so that the oldest always ends, but where units are gathered: there
  // a peer may need this rank for a gather before it reduces.
  void wait_for_room(const ReduceOptions& options) {
    const auto most = static_cast<std::uint64_t>(options.under_way_max);
    if (most == 0 || last_job_ < most) {
      return;
    }
    const auto oldest = last_job_ + 1 - most;
    if (model_.replicates()) {
      (void)worker_.wait(oldest);
    } else if (!room_wait_timed_out_) {
      room_wait_timed_out_ = !worker_.wait_for(oldest, options.room_wait());
    }
  }

  // Run by the worker.
  Status reduce(
      UnitId unit,
      const ReduceOptions& options,
      std::vector<at::Tensor> flats) {
    const at::NoGradGuard no_grad;
    copy_gradients(model_.unit(unit), options, flats);
    SHERD_RETURN_IF_FAILED(status_of(
        [&] { hook_.reduce(unit, flats, {.messages = *transport_}); },
        ErrorCode::kFailedPrecondition,
        str("[exchange] the hook that reduces ", model_.unit(unit).name,
            " failed: ")));
    std::int64_t bytes = 0;
    for (std::size_t f = 0; f < flats.size(); ++f) {
      if (flats[f].defined()) {
        bytes += take_result(unit, f, options, flats[f]);
      }
    }
    const std::lock_guard lock(mu_);
    reduced_.push_back(unit);
    bytes_given_back_ += bytes;
    return {};
  }

  // Returns the bytes of a slot that nobody needs any more.
  std::int64_t take_result(
      UnitId unit,
      std::size_t f,
      const ReduceOptions& options,
      const at::Tensor& flat) {
    const auto kept =
        owned(model_, unit, static_cast<int>(f), transport_->index());
    const auto result = flat.narrow(0, kept.begin, kept.numel());
    if (const auto scale = scale_of_mean(options.scale, transport_->size());
        scale != 1.0) {
      result.mul_(scale);
    }
    const auto out = options.into.empty()
        ? inner_->shard(unit, static_cast<int>(f)).gradient
        : options.into[f];
    if (out.is_alias_of(flat)) {
      return 0;
    }
    options.accumulate.at(f) ? out.add_(result) : out.copy_(result);
    return static_cast<std::int64_t>(flat.nbytes());
  }

  const ModelSpec& model_;
  const std::unique_ptr<UnitTransport> inner_;
  const std::shared_ptr<world::Transport> transport_;
  const ReduceHook hook_;
  std::map<UnitId, std::vector<at::Tensor>> slots_;  // Open ones.
  std::set<UnitId> reduced_once_;                    // In this backward.
  std::vector<UnitId> ended_;
  std::uint64_t last_job_ = 0;
  bool room_wait_timed_out_ = false;  // Since the last finish().
  std::int64_t under_way_peak_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t bytes_peak_ = 0;
  std::mutex mu_;
  // Guarded by mu_:
  std::vector<UnitId> reduced_;
  std::int64_t bytes_given_back_ = 0;
  WorkerThread worker_{
      "sherd-hook"};  // The last member: its jobs use the others.
};

}  // namespace

// The options' scale is that of the sum. The product may be 1 but for rounding.
double scale_of_mean(double scale_of_sum, int ranks) {
  const double scale = scale_of_sum * ranks;
  return std::abs(scale - 1.0) > kRounding ? scale : 1.0;
}

std::unique_ptr<UnitTransport> make_comm_hook_unit_transport(
    const ModelSpec& model,
    std::unique_ptr<UnitTransport> inner,
    std::shared_ptr<world::Transport> transport,
    ReduceHook hook) {
  return std::make_unique<CommHookUnitTransport>(
      model, std::move(inner), std::move(transport), std::move(hook));
}

}  // namespace sherd::exchange
