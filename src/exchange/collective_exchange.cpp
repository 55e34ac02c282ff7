// SPDX-License-Identifier: Apache-2.0
#include "exchange/collective_exchange.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include "base/check.h"
#include "base/status.h"
#include "base/worker_thread.h"
#include "exchange/backward_status.h"
#include "exchange/collective_steps.h"
#include "exchange/gradient_heap.h"
#include "exchange/numbers.h"
#include "exchange/recorded_exchange.h"
#include "exchange/unit_transport.h"

namespace sherd::exchange {
namespace {

class CollectiveExchange final : public Exchange {
 public:
  CollectiveExchange(
      std::shared_ptr<world::Transport> gather,
      std::shared_ptr<world::Transport> reduce,
      MakeUnitTransport make_unit_transport,
      FlightLog log)
      : log_(std::move(log)),
        make_unit_transport_(std::move(make_unit_transport)),
        gather_(std::move(gather)),
        reduce_(std::move(reduce)) {}
  // Connections may outlive this object, messages under way may not: they read
  // and write memory that goes with it.
  ~CollectiveExchange() override {
    const bool reducing = unit_transport_ && unit_transport_->reducing();
    // Read before its failure: a job may fail in between.
    const bool gathering = worker_.busy();
    if (auto failure = worker_.failure(); !failure.ok()) {
      abandon(failure);
    } else if (reducing || gathering) {
      abandon(
          {ErrorCode::kPeerLost,
           str("its exchange went with ", reducing ? "gradients" : "a gather",
               " under way")});
    }
  }
  CollectiveExchange(const CollectiveExchange&) = delete;
  CollectiveExchange& operator=(const CollectiveExchange&) = delete;

  Status open(const ModelSpec& model) override {
    model_ = model;
    log_.name_units(unit_names(model_));
    if (auto status = compare_models(*gather_, model_); !status.ok()) {
      return fail(status);
    }
    auto unit_transport = make_unit_transport_
        ? make_unit_transport_(model_, gather_, reduce_)
        : make_message_unit_transport(model_, gather_, reduce_);
    if (!unit_transport.ok()) {
      return fail(unit_transport.status());
    }
    unit_transport_ = std::move(unit_transport).value();
    steps_.emplace(*gather_, *unit_transport_, model_, log_);
    return {};
  }

  ShardMemory shard_memory(UnitId unit, int flat) override {
    return unit_transport_->shard(unit, flat);
  }

  Status start_unshard(UnitId unit, const UnshardOptions& options) override {
    SHERD_RETURN_IF_FAILED(error_);
    std::shared_ptr<UnshardedUnit> unsharded;
    SHERD_RETURN_IF_FAILED(with_room_for(unit, [&] {
      // Other threads write its tensors, and they outlive an evaluation.
      const c10::InferenceMode off(false);
      unsharded = unit_transport_->open_unit(unit, options, generation_);
    }));
    const bool is_new = unsharded_.emplace(unit, unsharded).second;
    SHERD_ASSERT(is_new, "a unit is gathered that is whole");
    if (model_.replicates()) {
      return {};
    }
    count_unshard(unit, options.precision);
    // Ranks that differ in forward fail, and in a planned backward one of them
    // has left the plan.
    const bool may_start = options.planned || !options.in_backward;
    const auto request = unshard_request(unit, options);
    started_[unit] =
        worker_.post([this, request, may_start, into = std::move(unsharded)] {
          return gather(request, may_start, into.get());
        });
    return {};
  }

  Result<std::vector<void*>> wait_for_unshard(UnitId unit) override {
    SHERD_RETURN_IF_FAILED(error_);
    if (const auto job = started_.extract(unit)) {
      if (auto status = worker_.wait(job.mapped()); !status.ok()) {
        return fail(status);
      }
    }
    unit_transport_->use_unit(unit);
    std::vector<void*> addresses;
    for (const auto& flat : unsharded_.at(unit)->flats) {
      addresses.push_back(flat.data_ptr());
    }
    return addresses;
  }

  void reshard(UnitId unit) override {
    const auto dropped = unsharded_.extract(unit);
    SHERD_ASSERT(!dropped.empty(), "a unit is dropped that is not whole");
    unit_transport_->drop_unit(unit, *dropped.mapped());
  }

  void begin_backward() override {
    if (unit_transport_ && error_.ok()) {
      unit_transport_->begin_backward();
    }
  }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    std::vector<at::Tensor> slot;
    with_room_for(unit, [&] {
      slot = unit_transport_->gradient_slot(unit);
    }).throw_if_failed();
    return slot;
  }

  Status start_reduce(UnitId unit, const ReduceOptions& options) override {
    SHERD_RETURN_IF_FAILED(error_);
    SHERD_RETURN_IF_FAILED(with_room_for(
        unit, [&] { unit_transport_->start_reduce(unit, options); }));
    backward_status_.mark_used(unit, options.used);
    ++counters_.reduces;
    let_reductions_start(options);
    look();
    return error_;
  }

  Result<BackwardOutcome> end_backward(const BackwardEnd& end) override {
    GradientHeap::leave();
    SHERD_RETURN_IF_FAILED(error_);
    backward_status_.set_end(end);
    const auto statuses = finish_backward(end.reduce_meanwhile);
    if (!statuses.ok()) {
      return fail(statuses.status());
    }
    backward_status_ = {};
    rounds_.clear();
    rounds_wait_ = true;
    ++backward_;
    auto outcome =
        combine_backward_statuses(model_, statuses.value(), gather_->ranks());
    if (!outcome.ok() || !is_any_set(outcome.value().late)) {
      unit_transport_->backward_ended();
    }
    return outcome;
  }

  Status publish(std::uint64_t generation) override {
    generation_ = generation;
    if (error_.ok()) {
      unit_transport_->publish(generation);
    }
    return error_;
  }

  Status all_reduce(const at::Tensor& values, ScalarReduceOp op) override {
    SHERD_RETURN_IF_FAILED(error_);
    auto request = make_request(CollectiveKind::kAllReduce);
    request.numel = static_cast<std::uint32_t>(values.numel());
    request.op = static_cast<std::uint32_t>(op);
    auto status = worker_.wait(worker_.post([&] {
      auto agreed = steps_->run_when_agreed(request);
      return agreed.ok() ? reduce_values(values, op) : agreed;
    }));
    return status.ok() ? status : fail(status);
  }

  void synchronize() override {
    if (unit_transport_ && error_.ok()) {
      unit_transport_->synchronize();
    }
  }

  std::vector<UnitId> progress() override {
    look();
    return unit_transport_ ? unit_transport_->take_ended()
                           : std::vector<UnitId>();
  }

  void close(const Status& reason) override {
    if (!reason.ok()) {
      (void)fail(reason);
    } else if (error_.ok()) {
      error_ = {ErrorCode::kFailedPrecondition, "[exchange] it was closed"};
      leave();
    }
  }

  const ExchangeCounters& counters() const override {
    if (unit_transport_) {
      unit_transport_->add_to(counters_);
    }
    return counters_;
  }

 private:
  // Peers would wait in vain for a rank that has no memory for a unit or its gradients.
  template <typename Take>
  Status with_room_for(UnitId unit, const Take& take) {
    try {
      take();
      return {};
    } catch (const Error& error) {
      return fail({error.code(), error.what()});
    } catch (const std::exception& error) {
      return fail(
          {ErrorCode::kUnavailable,
           str("[exchange] no memory for unit ", model_.unit(unit).name, ", ",
               unit_bytes(model_.unit(unit)),
               " bytes: ", first_line_of(error))});
    }
  }

  // Where ranks would otherwise agree on reductions only at the end of the backward. Once a round was
  // waited for, the slots of its reductions can be used again.
  void let_reductions_start(const ReduceOptions& options) {
    const auto number = options.patient
        ? std::nullopt  // It has already said that it is at the end.
        : unit_transport_->begin_round();
    if (!number) {
      return;
    }
    const auto request = make_request(CollectiveKind::kStartReductions);
    rounds_.push_back(
        {worker_.post([=, this] { return steps_->run_when_agreed(request); }),
         *number});
    const auto most = static_cast<std::size_t>(options.under_way_max);
    while (most > 0 && rounds_wait_ && rounds_.size() > most) {
      rounds_wait_ = worker_.wait_for(rounds_.front().job, options.room_wait());
      if (rounds_wait_) {
        unit_transport_->round_is_over(rounds_.front().number);
        rounds_.pop_front();
      }
    }
  }

  // What progress() does.
  void look() {
    if (!error_.ok()) {
      return;
    }
    auto status = unit_transport_->progress();
    if (status.ok()) {
      status = worker_.failure();
    }
    if (!status.ok()) {
      (void)fail(status);
    }
  }

  // The first failure closes both transports and stays. A transport calls a peer that
  // closed by itself kAborted, which here would mean "usable".
  Status fail(const Status& status) {
    if (error_.ok()) {
      error_ = status.code() == ErrorCode::kAborted
          ? Status(ErrorCode::kPeerLost, status.message())
          : status;
      abandon(error_);
    }
    return error_;
  }

  // When it returns, the caller's memory and what it can see of this exchange's
  // are neither read nor written any more. Transports end first: waits end with them.
  void abandon(const Status& why) {
    gather_->abandon(why);
    reduce_->abandon(why);
    if (unit_transport_) {
      unit_transport_->abandon(why);
    }
    worker_.settle();
  }

  // Every step of peers begins with a request, and that of this rank never comes:
  // leave() says so on the transport of requests. A gather under way goes first.
  void leave() {
    reduce_->leave();
    if (!worker_.busy()) {
      gather_->leave();
      return;
    }
    worker_.post([this] {
      gather_->leave();
      return Status();
    });
  }

  CollectiveRequest make_request(CollectiveKind kind) const {
    CollectiveRequest request;
    request.kind = kind;
    request.generation = generation_;
    request.backward = backward_;
    return request;
  }

  CollectiveRequest unshard_request(
      UnitId unit, const UnshardOptions& options) const {
    auto request = make_request(CollectiveKind::kUnshard);
    request.unit = unit;
    request.in_backward = options.in_backward ? 1 : 0;
    request.full_precision = options.precision == Precision::kFull ? 1 : 0;
    return request;
  }

  void count_unshard(UnitId unit, Precision precision) {
    ++counters_.unshards;
    counters_.unsharded_bytes += precision == Precision::kFull
        ? flat_offsets(model_.unit(unit), &FlatSpec::shard_dtype).back()
        : unit_bytes(model_.unit(unit));
  }

  // Run by the worker.
  Status gather(
      const CollectiveRequest& request, bool may_start, UnshardedUnit* into) {
    RECORD_FUNCTION("sherd::gather " + model_.unit(request.unit).name, {});
    FlightRecord record{.unit = request.unit, .event = FlightEvent::kStarted};
    log_.record(record);
    CollectiveSteps::WantedUnit wanted{.unsharded = into};
    if (may_start) {
      wanted.early =
          unit_transport_->start_gather(steps_->gather_of(request), into);
    }
    auto status = steps_->run_when_agreed(request, &wanted);
    if (status.ok()) {
      record.event = FlightEvent::kGathered;
      log_.record(record);
    }
    return status;
  }

  // Returns the statuses of all ranks.
  Result<std::vector<at::Tensor>> finish_backward(
      const std::function<Status()>& reduce_meanwhile) {
    const auto request = make_request(CollectiveKind::kEndBackward);
    const auto at_end =
        worker_.post([=, this] { return steps_->run_when_agreed(request); });
    if (reduce_meanwhile) {
      SHERD_RETURN_IF_FAILED(reduce_meanwhile());
    }
    SHERD_RETURN_IF_FAILED(worker_.wait(at_end));
    SHERD_RETURN_IF_FAILED(unit_transport_->finish());
    std::vector<at::Tensor> statuses;
    const auto job = worker_.post([&] {
      // All ranks have seen the same: gathers differed.
      backward_status_.departed =
          steps_->take_assisted() || backward_status_.departed;
      auto all = steps_->all_gather(
          backward_status_.encode(model_), "the end of the backward");
      if (all.ok()) {
        statuses = all.value();
      }
      return all.status();
    });
    SHERD_RETURN_IF_FAILED(worker_.wait(job));
    return statuses;
  }

  // Run by the worker.
  Status reduce_values(const at::Tensor& values, ScalarReduceOp op) {
    SHERD_ASSERT(
        values.scalar_type() == c10::ScalarType::Double &&
        values.is_contiguous());
    auto all = steps_->all_gather(
        bytes_of(values.const_data_ptr(), values.nbytes()), "an all-reduce");
    SHERD_RETURN_IF_FAILED(all.status());
    combine_scalars(all.value(), op, values);
    return {};
  }

  const FlightLog log_;
  ModelSpec model_;
  const MakeUnitTransport make_unit_transport_;  // Null: by messages.
  // The unit_transport goes last, with the transports: messages under way end before their
  // buffers go.
  std::unique_ptr<UnitTransport> unit_transport_;
  const std::shared_ptr<world::Transport> gather_;
  const std::shared_ptr<world::Transport> reduce_;
  std::optional<CollectiveSteps> steps_;     // The worker's, once it is open.
  std::map<UnitId, std::uint64_t> started_;  // The worker's jobs.
  struct Round {
    std::uint64_t job = 0;  // The worker's.
    std::uint64_t number = 0;
  };
  std::deque<Round> rounds_;  // Of this backward, not waited for yet.
  bool rounds_wait_ = true;   // Until a wait in this backward is too long.
  std::map<UnitId, std::shared_ptr<UnshardedUnit>>
      unsharded_;  // Of open units.
  BackwardStatus backward_status_;
  std::uint64_t generation_ = 0;
  std::uint64_t backward_ = 0;
  Status error_;
  mutable ExchangeCounters counters_;
  WorkerThread worker_{
      "sherd-gather"};  // The last member: its jobs use the others.
};

}  // namespace

std::unique_ptr<Exchange> make_collective_exchange(
    std::shared_ptr<world::Transport> gather,
    std::shared_ptr<world::Transport> reduce,
    MakeUnitTransport make_unit_transport,
    FlightLog log) {
  return std::make_unique<CollectiveExchange>(
      std::move(gather), std::move(reduce), std::move(make_unit_transport),
      std::move(log));
}

}  // namespace sherd::exchange
