// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_memory_exchange.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/copy_bytes.h"
#include "base/status.h"
#include "exchange/agreement.h"
#include "exchange/backward_status.h"
#include "exchange/numbers.h"
#include "exchange/recorded_exchange.h"
#include "exchange/shared_layout.h"
#include "exchange/shared_memory_reductions.h"
#include "shm/barrier.h"
#include "shm/waiter.h"
#include "world/host_segment.h"

namespace sherd::exchange {
namespace {

using shm::Counter;

// The payload of one step has this much room at least.
constexpr std::int64_t kPayloadBytesMin = 4096;
// How long a wait sleeps before it looks whether waiting is in vain.
constexpr std::chrono::milliseconds kDoze{2};
// A rank may have published this many times more than another has seen.
constexpr std::size_t kGenerations = 8;

// One rank's part of a step, in the segment. A post releases what was written before it to every
// rank that has seen the post.
struct RankState {
  shm::CounterCell published;  // Its slices, so many times.
  // The step of all ranks that it has come to: no publish precedes that.
  shm::CounterCell coming;
  std::uint64_t generations[kGenerations];
};

// What a rank brings to a step of all ranks: this, a payload, and zeros.
struct StepHeader {
  CollectiveRequest request;
  std::uint64_t bytes;  // Of the payload.
};

class SharedMemoryExchange final : public Exchange {
 public:
  SharedMemoryExchange(
      const World& world,
      const std::string& name,
      std::shared_ptr<world::Transport> control,
      bool sum_thread,
      FlightLog log)
      : world_(world),
        name_(name),
        control_(std::move(control)),
        sum_thread_(sum_thread),
        log_(std::move(log)) {
    for (int i = 0; i < control_->size(); ++i) {
      ranks_.push_back(control_->world_rank(i));
    }
  }
  ~SharedMemoryExchange() override {
    const bool busy = sums_ && sums_->under_way() > 0;
    leave(
        busy ? Status(
                   ErrorCode::kPeerLost,
                   "its exchange went with gradients under way")
             : Status());
  }
  SharedMemoryExchange(const SharedMemoryExchange&) = delete;
  SharedMemoryExchange& operator=(const SharedMemoryExchange&) = delete;

  Status open(const ModelSpec& model) override;

  bool one_sided() const override { return true; }
  bool takes_sinks() const override { return !model_.replicates(); }

  ShardMemory shard_memory(UnitId unit, int flat) override {
    return memory_->shard(unit, flat);
  }

  Status start_unshard(UnitId unit, const UnshardOptions& options) override {
    SHERD_RETURN_IF_FAILED(error_);
    begin();
    const bool full = options.precision == Precision::kFull;
    if (model_.replicates()) {
      if (full) {
        full_.emplace(unit, memory_->shards(unit));
      }
      return {};
    }
    ++counters_.unshards;
    counters_.unsharded_bytes += full
        ? flat_offsets(model_.unit(unit), &FlatSpec::shard_dtype).back()
        : unit_bytes(model_.unit(unit));
    if (full) {
      full_.emplace(unit, std::vector<at::Tensor>());
    }
    return {};
  }

  Result<std::vector<void*>> wait_for_unshard(UnitId unit) override {
    SHERD_RETURN_IF_FAILED(error_);
    const auto full = full_.find(unit);
    auto status = model_.replicates() ? Status() : wait_for_owners(unit);
    if (status.ok() && full != full_.end() && !model_.replicates()) {
      status = copy_in_full(unit, full->second);
    }
    if (!status.ok()) {
      return fail(status);
    }
    std::vector<void*> addresses;
    for (std::size_t f = 0; f < model_.unit(unit).flats.size(); ++f) {
      addresses.push_back(
          full != full_.end() ? full->second[f].mutable_data_ptr()
                              : memory_->whole(unit, static_cast<int>(f)));
    }
    return addresses;
  }

  void reshard(UnitId unit) override { full_.erase(unit); }

  void begin_backward() override {
    if (sums_ && error_.ok()) {
      sums_->begin_backward();
    }
  }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return sums_->slot(unit);
  }

  Status start_reduce(UnitId unit, const ReduceOptions& options) override {
    SHERD_RETURN_IF_FAILED(error_);
    begin();
    wait_for_room(options);
    sums_->post(unit, options);
    backward_status_.mark_used(unit, options.used);
    ++counters_.reduces;
    sums_->progress();
    return {};
  }

  Result<BackwardOutcome> end_backward(const BackwardEnd& end) override {
    GradientHeap::leave();
    SHERD_RETURN_IF_FAILED(error_);
    begin();
    if (end.reduce_meanwhile) {  // Nobody needs this rank to gather.
      SHERD_RETURN_IF_FAILED(end.reduce_meanwhile());
    }
    backward_status_.set_end(end);
    CollectiveRequest request;
    request.kind = CollectiveKind::kEndBackward;
    request.sequence = cells_->round();
    record(FlightEvent::kRequested, request);
    auto status = finish_sums();
    std::vector<at::Tensor> statuses;
    if (status.ok()) {
      auto all = all_gather_step(request, backward_status_.encode(model_));
      status = all.status();
      if (const auto missing = sums_->missing(); status.ok() && missing) {
        status = {
            ErrorCode::kPeerMismatch,
            str("[exchange] rank ",
                ranks_[static_cast<std::size_t>(missing->rank)],
                " has not reduced unit ", model_.unit(missing->unit).name)};
      }
      if (all.ok()) {
        statuses = std::move(all).value();
      }
    }
    if (!status.ok()) {
      return fail(status);
    }
    backward_status_ = {};
    ++backward_;
    sums_->progress();
    return combine_backward_statuses(model_, statuses, ranks_);
  }

  Status publish(std::uint64_t generation) override {
    SHERD_RETURN_IF_FAILED(error_);
    begin();
    generation_ = generation;
    publish_shards();
    return {};
  }

  Status all_reduce(const at::Tensor& values, ScalarReduceOp op) override {
    SHERD_RETURN_IF_FAILED(error_);
    begin();
    CollectiveRequest request;
    request.kind = CollectiveKind::kAllReduce;
    request.numel = static_cast<std::uint32_t>(values.numel());
    request.op = static_cast<std::uint32_t>(op);
    // Within a backward, others may wait for room that only this rank's sums give them.
    if (auto status = finish_sums(); !status.ok()) {
      return fail(status);
    }
    const auto room =
        (cell_bytes_ - static_cast<std::int64_t>(sizeof(StepHeader))) /
        static_cast<std::int64_t>(sizeof(double));
    std::int64_t at = 0;
    do {
      const auto part =
          values.narrow(0, at, std::min(room, values.numel() - at));
      auto all = all_gather_step(
          request, bytes_of(part.const_data_ptr(), part.nbytes()));
      if (!all.ok()) {
        return fail(all.status());
      }
      combine_scalars(all.value(), op, part);
      at += room;
    } while (at < values.numel());
    return {};
  }

  std::vector<UnitId> progress() override {
    if (error_.ok()) {
      sums_->progress();
    }
    return sums_ ? sums_->take_ended() : std::vector<UnitId>();
  }

  void close(const Status& reason) override {
    if (!reason.ok()) {
      (void)fail(reason);
    } else if (error_.ok()) {
      error_ = {ErrorCode::kFailedPrecondition, "[exchange] it was closed"};
      leave({});
    }
  }

  const ExchangeCounters& counters() const override {
    if (sums_) {
      const auto shown = memory_->shown_bytes();
      counters_.gradient_bytes = sums_->slot_bytes() + shown;
      counters_.gradient_bytes_peak = sums_->slot_bytes_peak() + shown;
      counters_.reduces_under_way_peak = sums_->under_way_peak();
    }
    return counters_;
  }

 private:
  int size() const { return control_->size(); }
  int me() const { return control_->index(); }
  RankState& state(int rank) const {
    return states_[static_cast<std::size_t>(rank)];
  }
  std::byte* base() const {
    return segment_->at<std::byte>(0, segment_->bytes()).data();
  }
  std::string name(int rank) const {
    return str("rank ", ranks_[static_cast<std::size_t>(rank)]);
  }

  void begin();
  void publish_shards();
  Status wait_for_owners(UnitId unit);
  void wait_for_room(const ReduceOptions& options);
  Status finish_sums();
  Status copy_in_full(UnitId unit, std::vector<at::Tensor>& into);
  void record(FlightEvent event, const CollectiveRequest& request) const {
    log_.record(
        {.sequence = request.sequence,
         .unit = request.unit,
         .event = event,
         .step = flight_step(request)});
  }
  Result<std::vector<at::Tensor>> all_gather_step(
      CollectiveRequest request, const at::Tensor& payload);
  Status fail(const Status& status);
  void leave(const Status& why);

  const World world_;
  const std::string name_;
  std::shared_ptr<world::Transport> control_;
  const bool sum_thread_;
  const FlightLog log_;
  std::vector<int> ranks_;  // World ranks.
  ModelSpec model_;
  std::vector<std::string> unit_names_;
  SharedLayout layout_;
  // Tensors over it keep it, too.
  std::shared_ptr<shm::HostSegment> segment_;
  std::optional<shm::Waiter> waiter_;
  bool left_ = false;
  RankState* states_ = nullptr;               // By rank; in the segment.
  std::optional<shm::SmallAllGather> cells_;  // For steps of all ranks.
  std::int64_t cell_bytes_ = 0;
  std::optional<SharedUnits> memory_;
  std::optional<SharedMemoryReductions> sums_;
  std::map<UnitId, std::vector<at::Tensor>> full_;
  BackwardStatus backward_status_;
  const SteadyClock clock_;
  bool begun_ = false;
  bool room_wait_timed_out_ = false;  // In this backward.
  std::uint64_t published_ = 0;       // How often this rank has published.
  std::uint64_t seen_ = 0;            // Of all ranks, at least.
  std::uint64_t generation_ = 0;
  std::uint64_t backward_ = 0;
  Status error_;
  mutable ExchangeCounters counters_;
};

Status SharedMemoryExchange::open(const ModelSpec& model) {
  model_ = model;
  unit_names_ = unit_names(model_);
  log_.name_units(unit_names_);
  auto status = compare_models(*control_, model_);
  if (!status.ok()) {
    return fail(status);
  }
  cell_bytes_ = static_cast<std::int64_t>(sizeof(StepHeader)) +
      std::max<std::int64_t>(
                    backward_status_.encode(model_).numel(), kPayloadBytesMin);
  const auto cells = static_cast<std::int64_t>(shm::SmallAllGather::bytes(
      size(), static_cast<std::size_t>(cell_bytes_)));
  const auto states = static_cast<std::int64_t>(sizeof(RankState)) * size();
  const auto slots = static_cast<std::int64_t>(sizeof(SharedSlotState)) *
      size() * static_cast<std::int64_t>(model_.units.size());
  layout_ = plan_shared_layout(model_, size(), cells + states + slots);
  auto segment = world::share_memory(
      world_, name_, ranks_,
      {.bytes = static_cast<std::size_t>(layout_.bytes),
       .touched_bytes = static_cast<std::size_t>(layout_.touched_bytes)});
  if (!segment.ok()) {
    return fail(segment.status());
  }
  segment_ = std::make_shared<shm::HostSegment>(std::move(segment).value());
  waiter_.emplace(
      segment_->peers(), clock_,
      shm::WaitOptions{.deadline = world_.options().deadline});
  // Zeros are what a counter begins with.
  cells_.emplace(
      std::span(base(), static_cast<std::size_t>(cells)),
      static_cast<std::size_t>(cell_bytes_), *waiter_);
  states_ = reinterpret_cast<RankState*>(base() + cells);
  memory_.emplace(model_, layout_, me(), segment_);
  for (const auto& range : read_only_ranges(model_, layout_, me())) {
    // An aid: nothing depends on it.
    (void)segment_->make_read_only(
        static_cast<std::size_t>(range.begin),
        static_cast<std::size_t>(range.end - range.begin));
  }
  SharedGradientSlots::Mapping mapping{
      .model = &model_,
      .rank = me(),
      .regions = {},
      .region_bytes = layout_.slot_region_bytes,
      .slots = reinterpret_cast<SharedSlotState*>(base() + cells + states),
      .heap_bytes = layout_.heap_bytes,
      .segment = segment_};
  for (const auto region : layout_.slot_regions) {
    mapping.regions.push_back(base() + region);
  }
  sums_.emplace(std::move(mapping), *memory_, sum_thread_);
  return {};
}

// The values that shards had when this rank did anything for the first time are
// the first ones published.
void SharedMemoryExchange::begin() {
  if (!begun_) {
    begun_ = true;
    publish_shards();
  }
}

void SharedMemoryExchange::publish_shards() {
  memory_->cast_shards();
  ++published_;
  state(me()).generations[published_ % kGenerations] = generation_;
  Counter(state(me()).published).post(published_);
}

Status SharedMemoryExchange::wait_for_owners(UnitId unit) {
  if (seen_ == published_) {
    return {};
  }
  const std::string what = str("the values of unit ", model_.unit(unit).name);
  for (int rank = 0; rank < size(); ++rank) {
    const Counter published(state(rank).published);
    const Counter coming(state(rank).coming);
    if (published.reached(published_)) {
      continue;
    }
    SHERD_RETURN_IF_FAILED(waiter_->wait(
        published, published_,
        {.rank = rank,
         .what = what,
         .cancel_counter = coming,
         .cancel_value = cells_->round() + 1}));
    if (!published.reached(published_)) {
      return {
          ErrorCode::kPeerMismatch,
          str("[exchange] unit ", model_.unit(unit).name, ": ", name(me()),
              " has generation ", generation_, ", ", name(rank),
              " has not published it and goes on")};
    }
  }
  for (int rank = 0; rank < size(); ++rank) {
    const auto theirs = state(rank).generations[published_ % kGenerations];
    if (theirs != generation_) {
      return {
          ErrorCode::kPeerMismatch,
          str("[exchange] unit ", model_.unit(unit).name, ": ", name(me()),
              " has generation ", generation_, ", ", name(rank),
              " has generation ", theirs)};
    }
  }
  seen_ = published_;
  return {};
}

// Peers that do other things first may wait for what this rank does next, hence
// not for ever.
void SharedMemoryExchange::wait_for_room(const ReduceOptions& options) {
  const auto began = clock_.now();
  const Duration deadline = world_.options().deadline;
  const auto patience = std::min<Duration>(
      options.room_wait(), options.patient ? deadline : deadline / 4);
  while (options.under_way_max > 0 && !room_wait_timed_out_ &&
         sums_->under_way() >= options.under_way_max) {
    sums_->progress();
    if (const auto missing = sums_->missing()) {
      missing->counter.sleep_below(missing->number, kDoze);
      room_wait_timed_out_ =
          clock_.now() - began > patience || !segment_->peers().check().ok();
    } else {
      sums_->wait_for_thread(kDoze);
    }
    if (!sums_->failure().ok()) {
      return;
    }
  }
}

Status SharedMemoryExchange::finish_sums() {
  Counter(state(me()).coming).post(cells_->round() + 1);
  room_wait_timed_out_ = false;
  // Ranks may reduce in different orders: one that waits for room may need a sum of this rank before
  // it posts what this rank waits for.
  const std::function<void()> progress = [this] { sums_->progress(); };
  for (sums_->progress(); sums_->under_way() > 0; sums_->progress()) {
    SHERD_RETURN_IF_FAILED(sums_->failure());
    const auto missing = sums_->missing();
    if (!missing) {  // It has come since.
      sums_->wait_for_thread(kDoze);
      continue;
    }
    // A rank that has reached a step of all ranks posts no more gradients before it. That step
    // differs from this rank's, which all_gather_step() will find.
    const auto arrived = cells_->arrived(missing->rank);
    const auto next = cells_->round() + 1;
    const std::string what =
        str("the gradients of unit ", model_.unit(missing->unit).name);
    SHERD_RETURN_IF_FAILED(waiter_->wait(
        missing->counter, missing->number,
        {.rank = missing->rank,
         .what = what,
         .cancel_counter = arrived,
         .cancel_value = next,
         .meanwhile = &progress}));
    if (arrived.reached(next) && !missing->counter.reached(missing->number)) {
      return {};
    }
  }
  return {};
}

// A step of all ranks, who tell each other which one it is. Returns the
// payloads, by rank.
Result<std::vector<at::Tensor>> SharedMemoryExchange::all_gather_step(
    CollectiveRequest request, const at::Tensor& payload) {
  request.sequence = cells_->round();
  request.generation = generation_;
  request.backward = backward_;
  if (request.kind != CollectiveKind::kEndBackward) {  // Which waits before.
    record(FlightEvent::kRequested, request);
  }
  Counter(state(me()).coming).post(cells_->round() + 1);
  const auto bytes = static_cast<std::size_t>(cell_bytes_);
  SHERD_ASSERT(sizeof(StepHeader) + payload.nbytes() <= bytes);
  std::vector<std::byte> mine(bytes);
  std::vector<std::byte> all(bytes * ranks_.size());
  const StepHeader head{request, payload.nbytes()};
  std::memcpy(mine.data(), &head, sizeof(head));
  copy_bytes(
      mine.data() + sizeof(head), payload.const_data_ptr(), payload.nbytes());
  SHERD_RETURN_IF_FAILED(cells_->all_gather_bytes(
      mine, all, "an answer to " + exchange::describe(request, unit_names_)));
  record(FlightEvent::kAgreed, request);
  std::vector<CollectiveRequest> requests;
  std::vector<at::Tensor> payloads;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto* theirs = all.data() + rank * bytes;
    StepHeader their_head;
    std::memcpy(&their_head, theirs, sizeof(their_head));
    requests.push_back(their_head.request);
    payloads.push_back(bytes_of(theirs + sizeof(their_head), their_head.bytes));
  }
  const auto agreed = agree(requests, ranks_, unit_names_);
  return agreed.ok() ? Result(std::move(payloads)) : agreed.status();
}

// Nobody writes a shard before all have copied. Where shards are private, they
// are shown in the region of gradient slots, of which none is in use.
Status SharedMemoryExchange::copy_in_full(
    UnitId unit, std::vector<at::Tensor>& into) {
  const auto offsets = flat_offsets(model_.unit(unit), &FlatSpec::shard_dtype);
  const auto shown = [&](int rank) {
    return base() + layout_.slot_regions[static_cast<std::size_t>(rank)];
  };
  CollectiveRequest request;
  request.kind = CollectiveKind::kUnshard;
  request.unit = unit;
  request.full_precision = 1;
  const auto nothing = bytes_of("", 0);
  const bool cast = is_cast(model_.unit(unit));
  for (std::size_t f = 0; cast && f < model_.unit(unit).flats.size(); ++f) {
    const auto shard = memory_->shard(unit, static_cast<int>(f)).shard;
    copy_bytes(
        shown(me()) + offsets[f], shard.const_data_ptr(), shard.nbytes());
  }
  if (cast) {
    if (auto all = all_gather_step(request, nothing); !all.ok()) {
      return all.status();
    }
  }
  into.clear();
  for (std::size_t f = 0; f < model_.unit(unit).flats.size(); ++f) {
    const auto& flat = model_.unit(unit).flats[f];
    into.push_back(at::empty({flat.layout.numel}, flat.dtype));
    for (int rank = 0; rank < size(); ++rank) {
      const auto range = flat.layout.shard(rank);
      const auto part = into.back().narrow(0, range.begin, range.numel());
      const auto* from = cast
          ? shown(rank) + offsets[f]
          : static_cast<std::byte*>(memory_->whole(unit, static_cast<int>(f))) +
              range.begin *
                  static_cast<std::int64_t>(c10::elementSize(flat.dtype));
      copy_bytes(part.mutable_data_ptr(), from, part.nbytes());
    }
  }
  return all_gather_step(request, nothing).status();
}

// The first failure stays, and ranks that wait for this one get it.
Status SharedMemoryExchange::fail(const Status& status) {
  if (error_.ok()) {
    error_ = status.code() == ErrorCode::kAborted
        ? Status(ErrorCode::kPeerLost, status.message())
        : status;
    leave(error_);
    control_->abandon(error_);
  }
  return error_;
}

// After this call the caller's memory is its own again. Otherwise the summing thread would go on
// when a late rank posts, and late ranks would still read shards in place. If the kernel refuses
// the private mapping, late ranks get the failure all the same, but may have read what was written
// after it.
void SharedMemoryExchange::leave(const Status& why) {
  if (segment_ && !std::exchange(left_, true)) {
    if (why.ok()) {
      segment_->peers().leave();
    } else {
      segment_->peers().give_up(why.message());
    }
    if (sums_) {
      sums_->stop();
    }
    (void)segment_->make_private(0, shm::round_up_to_pages(segment_->bytes()));
  }
}

}  // namespace

std::unique_ptr<Exchange> make_shared_memory_exchange(
    const World& world,
    const std::string& name,
    std::shared_ptr<world::Transport> control,
    bool sum_thread,
    FlightLog log) {
  return std::make_unique<SharedMemoryExchange>(
      world, name, std::move(control), sum_thread, std::move(log));
}

}  // namespace sherd::exchange
