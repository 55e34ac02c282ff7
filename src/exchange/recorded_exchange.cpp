// SPDX-License-Identifier: Apache-2.0
#include "exchange/recorded_exchange.h"

#include <exception>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include <ATen/record_function.h>

namespace sherd::exchange {
namespace {

class RecordedExchange final : public Exchange {
 public:
  RecordedExchange(std::unique_ptr<Exchange> recorded, FlightLog log)
      : next_(std::move(recorded)), log_(std::move(log)) {}
  ~RecordedExchange() override {
    if (failed_ || std::uncaught_exceptions() == 0) {
      return;
    }
    try {
      log_.fail("ended by an exception");
    } catch (const std::exception&) {
      // That exception matters more.
    }
  }
  RecordedExchange(const RecordedExchange&) = delete;
  RecordedExchange& operator=(const RecordedExchange&) = delete;

  Status open(const ModelSpec& model) override {
    names_ = unit_names(model);
    log_.name_units(names_);
    in_backward_.assign(names_.size(), false);
    for (const auto& unit : model.units) {
      bytes_.push_back(unit_bytes(unit));
      slot_bytes_.push_back(flat_offsets(unit, &FlatSpec::slot_dtype).back());
    }
    return seen(next_->open(model));
  }

  ShardMemory shard_memory(UnitId unit, int flat) override {
    return next_->shard_memory(unit, flat);
  }

  Status start_unshard(UnitId unit, const UnshardOptions& options) override {
    RECORD_FUNCTION("sherd::start_unshard " + name_of(unit), {});
    in_backward_[static_cast<std::size_t>(unit)] = options.in_backward;
    log_.record(
        {.bytes = bytes_[static_cast<std::size_t>(unit)],
         .unit = unit,
         .event = FlightEvent::kAsked,
         .step = unshard_step(unit)});
    return seen(next_->start_unshard(unit, options));
  }

  Result<std::vector<void*>> wait_for_unshard(UnitId unit) override {
    RECORD_FUNCTION("sherd::unshard " + name_of(unit), {});
    return waited({.unit = unit, .step = unshard_step(unit)}, [&] {
      return next_->wait_for_unshard(unit);
    });
  }

  void reshard(UnitId unit) override { next_->reshard(unit); }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return next_->gradient_slot(unit);
  }

  Status start_reduce(UnitId unit, const ReduceOptions& options) override {
    RECORD_FUNCTION("sherd::reduce " + name_of(unit), {});
    log_.record(
        {.bytes = slot_bytes_[static_cast<std::size_t>(unit)],
         .unit = unit,
         .event = FlightEvent::kPosted});
    reducing_.insert(unit);
    return seen(next_->start_reduce(unit, options));
  }

  Result<BackwardOutcome> end_backward(const BackwardEnd& end) override {
    RECORD_FUNCTION("sherd::end_backward", {});
    if (end.departed) {
      log_.record({.event = FlightEvent::kDeparted});
    }
    auto outcome = waited({.step = FlightStep::kEndBackward}, [&] {
      return next_->end_backward(end);
    });
    const auto ended = next_->progress();
    ended_.insert(ended_.end(), ended.begin(), ended.end());
    if (outcome.ok()) {
      note_reduced({reducing_.begin(), reducing_.end()});
    }
    reducing_.clear();
    log_.record({.event = FlightEvent::kBackwardEnded});
    return outcome;
  }

  Status publish(std::uint64_t generation) override {
    log_.record(
        {.sequence = generation,
         .event = FlightEvent::kRequested,
         .step = FlightStep::kPublish});
    auto status = waited({.step = FlightStep::kPublish}, [&] {
      return next_->publish(generation);
    });
    log_.record({.sequence = generation, .event = FlightEvent::kPublished});
    return status;
  }

  Status all_reduce(const at::Tensor& values, ScalarReduceOp op) override {
    RECORD_FUNCTION("sherd::all_reduce", {});
    const auto step = op == ScalarReduceOp::kSame ? FlightStep::kBeginStep
                                                  : FlightStep::kAllReduce;
    return waited(
        {.step = step}, [&] { return next_->all_reduce(values, op); });
  }

  void synchronize() override { next_->synchronize(); }
  void begin_backward() override { next_->begin_backward(); }

  std::vector<UnitId> progress() override {
    auto ended = std::exchange(ended_, {});
    const auto now = next_->progress();
    note_reduced(now);
    ended.insert(ended.end(), now.begin(), now.end());
    return ended;
  }

  void close(const Status& reason) override {
    next_->close(reason);  // Peers shall not wait for this rank's disk.
    (void)seen(reason);
  }

  bool one_sided() const override { return next_->one_sided(); }
  bool takes_sinks() const override { return next_->takes_sinks(); }
  const ExchangeCounters& counters() const override {
    return next_->counters();
  }
  FlightLog log() const override { return log_; }

 private:
  const std::string& name_of(UnitId unit) const {
    return names_[static_cast<std::size_t>(unit)];
  }
  FlightStep unshard_step(UnitId unit) const {
    return in_backward_[static_cast<std::size_t>(unit)]
        ? FlightStep::kUnshardInBackward
        : FlightStep::kUnshardInForward;
  }

  template <typename Call>
  std::invoke_result_t<Call> waited(FlightRecord what, const Call& call) {
    what.event = FlightEvent::kWaiting;
    log_.record(what);
    auto result = call();
    (void)seen(status_of(result));  // While the record says that it waits.
    what.event = FlightEvent::kResumed;
    log_.record(what);
    return result;
  }
  static const Status& status_of(const Status& status) { return status; }
  template <typename T>
  static const Status& status_of(const Result<T>& result) {
    return result.status();
  }

  // The first failure is written down; later calls return the same one, but after a backward that
  // was given up the exchange is usable.
  Status seen(const Status& status) {
    if (!status.ok() && !failed_) {
      failed_ = status.code() != ErrorCode::kAborted;
      log_.fail(status.message());
    }
    return status;
  }

  void note_reduced(const std::vector<UnitId>& units) {
    for (const auto unit : units) {
      if (reducing_.erase(unit) > 0) {
        log_.record({.unit = unit, .event = FlightEvent::kReduced});
      }
    }
  }

  const std::unique_ptr<Exchange> next_;
  const FlightLog log_;
  std::vector<std::string> names_;
  std::vector<std::int64_t> bytes_;       // By unit, whole.
  std::vector<std::int64_t> slot_bytes_;  // By unit, of gradients.
  std::vector<bool> in_backward_;         // By unit: its last gather.
  std::set<UnitId> reducing_;
  std::vector<UnitId> ended_;  // For the next progress().
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<Exchange> make_recorded_exchange(
    std::unique_ptr<Exchange> recorded, FlightLog log) {
  return std::make_unique<RecordedExchange>(
      std::move(recorded), std::move(log));
}

std::vector<std::string> unit_names(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const auto& unit : model.units) {
    names.push_back(unit.name);
  }
  return names;
}

}  // namespace sherd::exchange
