// SPDX-License-Identifier: Apache-2.0
#include "exchange/collective_exchange.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "exchange/agreement.h"
#include "exchange/backward_note.h"
#include "exchange/link_group.h"
#include "exchange/message_carrier.h"
#include "exchange/numbers.h"
#include "exchange/worker.h"

namespace sherd::exchange {
namespace {

// Tags of the gather link, beside those of flats. Messages of one peer and tag
// keep their order, so tags need no sequence.
constexpr int kWishTag = 0;
constexpr int kPayloadTag = 1;
static_assert(kPayloadTag < kFlatTag);

class CollectiveExchange final : public Exchange {
 public:
  CollectiveExchange(
      std::unique_ptr<Link> gather,
      std::unique_ptr<Link> reduce,
      MakeCarrier make_carrier)
      : make_carrier_(std::move(make_carrier)),
        gather_(std::move(gather)),
        reduce_(std::move(reduce)) {
    for (int i = 0; i < gather_->size(); ++i) {
      ranks_.push_back(gather_->world_rank(i));
    }
  }
  // Connections may outlive this object, messages under way may not: they read
  // and write memory that goes with it.
  ~CollectiveExchange() override {
    const bool reducing = carrier_ && carrier_->reducing();
    if (reducing || worker_.busy()) {
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
    for (const auto& unit : model_.units) {
      unit_names_.push_back(unit.name);
    }
    if (auto status = compare_models(*gather_, model_); !status.ok()) {
      return fail(status);
    }
    auto carrier = make_carrier_(model_, gather_, reduce_);
    if (!carrier.ok()) {
      return fail(carrier.status());
    }
    carrier_ = std::move(carrier).value();
    return {};
  }

  ShardMemory shard_memory(UnitId unit, int flat) override {
    return carrier_->shard(unit, flat);
  }

  Status start_unshard(UnitId unit, const UnshardOptions& options) override {
    if (!error_.ok()) {
      return error_;
    }
    const auto place = carrier_->open_unit(unit, options, generation_);
    const bool is_new = places_.emplace(unit, place).second;
    SHERD_ASSERT(is_new, "a unit is gathered that is whole");
    if (model_.placement == Placement::kReplicate) {
      return {};
    }
    const bool full = options.precision == Precision::kFull;
    ++counters_.unshards;
    counters_.unsharded_bytes += full
        ? flat_offsets(spec(unit), &FlatSpec::shard_dtype).back()
        : unit_bytes(spec(unit));
    Wish wish;
    wish.full_precision = full ? 1 : 0;
    wish.kind = WishKind::kUnshard;
    wish.unit = unit;
    wish.in_backward = options.in_backward ? 1 : 0;
    started_[unit] = post(wish, place, nullptr);
    return {};
  }

  Result<std::vector<void*>> wait_for_unshard(UnitId unit) override {
    if (!error_.ok()) {
      return error_;
    }
    if (const auto job = started_.extract(unit)) {
      if (auto status = worker_.wait(job.mapped()); !status.ok()) {
        return fail(status);
      }
    }
    std::vector<void*> addresses;
    for (const auto& flat : places_.at(unit)->flats) {
      addresses.push_back(flat.data_ptr());
    }
    return addresses;
  }

  void reshard(UnitId unit) override {
    const auto place = places_.extract(unit);
    SHERD_ASSERT(!place.empty(), "a unit is dropped that is not whole");
    carrier_->drop_unit(unit, *place.mapped());
  }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return carrier_->gradient_slot(unit);
  }

  Status start_reduce(UnitId unit, const ReduceOptions& options) override {
    if (!error_.ok()) {
      return error_;
    }
    carrier_->start_reduce(unit, options);
    note_.mark_used(unit, options.used);
    ++counters_.reduces;
    look();
    return error_;
  }

  Result<BackwardOutcome> end_backward(const BackwardEnd& end) override {
    if (!error_.ok()) {
      return error_;
    }
    note_.late = end.late;
    note_.aborted = end.aborted;
    note_.hearsay = end.hearsay;
    note_.departed = end.departed;
    for (std::size_t u = 0; u < end.used.size(); ++u) {
      note_.mark_used(static_cast<UnitId>(u), end.used[u]);
    }
    const auto notes = finish_backward();
    if (!notes.ok()) {
      return fail(notes.status());
    }
    note_ = {};
    ++backward_;
    auto outcome = combine_notes(model_, notes.value(), ranks_);
    if (!outcome.ok() ||
        std::ranges::find(outcome.value().late, true) ==
            outcome.value().late.end()) {
      carrier_->backward_ended();
    }
    return outcome;
  }

  Status publish(std::uint64_t generation) override {
    generation_ = generation;
    if (error_.ok()) {
      carrier_->publish(generation);
    }
    return error_;
  }

  Status all_reduce(const at::Tensor& values, ReduceOp op) override {
    if (!error_.ok()) {
      return error_;
    }
    Wish wish;
    wish.kind = WishKind::kAllReduce;
    wish.numel = static_cast<std::uint32_t>(values.numel());
    wish.op = static_cast<std::uint32_t>(op);
    const auto job =
        post(wish, nullptr, [&] { return reduce_values(values, op); });
    auto status = worker_.wait(job);
    return status.ok() ? status : fail(status);
  }

  std::vector<UnitId> progress() override {
    look();
    return carrier_ ? carrier_->take_ended() : std::vector<UnitId>();
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
    if (carrier_) {
      carrier_->add_to(counters_);
    }
    return counters_;
  }

 private:
  const UnitSpec& spec(UnitId unit) const {
    return model_.units[static_cast<std::size_t>(unit)];
  }

  // What progress() does.
  void look() {
    if (!error_.ok()) {
      return;
    }
    auto status = carrier_->progress();
    if (status.ok()) {
      status = worker_.failure();
    }
    if (!status.ok()) {
      (void)fail(status);
    }
  }

  // The first failure closes both links and stays. A link calls a peer that
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
  // are neither read nor written any more. Links end first: waits end with them.
  void abandon(const Status& why) {
    gather_->abandon(why);
    reduce_->abandon(why);
    if (carrier_) {
      carrier_->abandon(why);
    }
    worker_.settle();
  }

  // Every step of peers begins with a wish, and that of this rank never comes:
  // they are told so on the link of wishes. A gather under way goes first.
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

  // Every rank has found the same difference, from the same messages. None may
  // close before all have those messages: who still waits would find a lost
  // rank instead. What becomes of the second round does not matter, hence no
  // third one.
  Status known_to_all(Status difference) {
    (void)swap_bytes(bytes_of("", 1), kPayloadTag, "the same difference");
    return difference;
  }

  // Sends `mine` to every peer and receives as many bytes from each, by rank.
  Result<std::vector<at::Tensor>> swap_bytes(
      const at::Tensor& mine, int tag, const std::string& what) {
    return LinkGroup(*gather_, what, tag).all_gather(mine);
  }

  Result<std::vector<Wish>> swap_wishes(Wish& mine) {
    mine.sequence = sequence_++;
    auto all = swap_bytes(
        bytes_of(&mine, sizeof(Wish)), kWishTag, "an answer to " + text(mine));
    if (!all.ok()) {
      const auto& failure = all.status();
      const bool late = failure.code() == ErrorCode::kDeadlineExceeded;
      return late
          ? Status(failure.code(), failure.message() + rule_broken_by(mine))
          : failure;
    }
    std::vector<Wish> wishes(all.value().size());
    for (std::size_t r = 0; r < wishes.size(); ++r) {
      std::memcpy(&wishes[r], all.value()[r].const_data_ptr(), sizeof(Wish));
    }
    return wishes;
  }

  std::string text(const Wish& wish) const {
    return exchange::describe(wish, unit_names_);
  }

  // Has the worker fulfil the wish, with `place` for the unit, and then do
  // `rest`, if there is one.
  std::uint64_t post(
      Wish wish, std::shared_ptr<UnitPlace> place, Worker::Job rest) {
    wish.generation = generation_;
    wish.backward = backward_;
    return worker_.post(
        [this, wish, place = std::move(place), rest = std::move(rest)] {
          auto status = fulfil(wish, place.get());
          return status.ok() && rest ? rest() : status;
        });
  }

  // Of the worker, as are those below it.
  // Wishes until the wish is granted, serving those of others meanwhile.
  Status fulfil(Wish wish, UnitPlace* place) {
    while (true) {
      const auto wishes = swap_wishes(wish);
      if (!wishes.ok()) {
        return wishes.status();
      }
      const auto agreement = agree(wishes.value(), ranks_, unit_names_);
      if (agreement.verdict == Verdict::kMismatch) {
        return known_to_all(
            {ErrorCode::kPeerMismatch, "[exchange] " + agreement.reason});
      }
      served_ = served_ || agreement.verdict == Verdict::kServe;
      if (agreement.wish.kind == WishKind::kUnshard) {
        auto status = gather(
            agreement.wish, wishes.value(),
            agreement.wish == wish ? place : nullptr);
        if (!status.ok()) {
          return status;
        }
      }
      if (agreement.wish == wish) {
        return {};
      }
    }
  }

  Status gather(
      const Wish& wish, const std::vector<Wish>& wishes, UnitPlace* place) {
    Gather gather{
        .unit = wish.unit,
        .precision =
            wish.full_precision != 0 ? Precision::kFull : Precision::kParameter,
        .generation = wish.generation,
        .wanted = {},
        .what = text(wish)};
    for (const auto& theirs : wishes) {
      gather.wanted.push_back(theirs == wish);
    }
    return carrier_->gather(gather, place);
  }

  // Returns the notes of all ranks.
  Result<std::vector<at::Tensor>> finish_backward() {
    Wish wish;
    wish.kind = WishKind::kEndBackward;
    if (auto status = worker_.wait(post(wish, nullptr, nullptr));
        !status.ok()) {
      return status;
    }
    if (auto status = carrier_->finish(); !status.ok()) {
      return status;
    }
    std::vector<at::Tensor> notes;
    const auto job = worker_.post([&] {
      // All ranks have seen the same: gathers differed.
      note_.departed = std::exchange(served_, false) || note_.departed;
      auto all = swap_bytes(
          note_.encode(model_), kPayloadTag, "the end of the backward");
      if (all.ok()) {
        notes = all.value();
      }
      return all.status();
    });
    if (auto status = worker_.wait(job); !status.ok()) {
      return status;
    }
    return notes;
  }

  Status reduce_values(const at::Tensor& values, ReduceOp op) {
    SHERD_ASSERT(
        values.scalar_type() == c10::ScalarType::Double &&
        values.is_contiguous());
    auto all = swap_bytes(
        bytes_of(values.const_data_ptr(), values.nbytes()), kPayloadTag,
        "an all-reduce");
    if (!all.ok()) {
      return all.status();
    }
    combine_numbers(all.value(), op, values);
    return {};
  }

  ModelSpec model_;
  const MakeCarrier make_carrier_;
  // The carrier goes last, with the links: messages under way end before their
  // buffers go.
  std::unique_ptr<Carrier> carrier_;
  const std::shared_ptr<Link> gather_;
  const std::shared_ptr<Link> reduce_;
  std::vector<int> ranks_;  // World ranks, for messages.
  std::vector<std::string> unit_names_;
  std::map<UnitId, std::uint64_t> started_;              // The worker's jobs.
  std::map<UnitId, std::shared_ptr<UnitPlace>> places_;  // Of open units.
  BackwardNote note_;
  std::uint64_t generation_ = 0;
  std::uint64_t backward_ = 0;
  Status error_;
  mutable ExchangeCounters counters_;
  std::uint64_t sequence_ = 0;     // The worker's.
  bool served_ = false;            // Too, while it works.
  Worker worker_{"sherd-gather"};  // The last member: its jobs use the others.
};

}  // namespace

std::unique_ptr<Exchange> make_collective_exchange(
    std::unique_ptr<Link> gather, std::unique_ptr<Link> reduce) {
  return make_exchange_by(
      std::move(gather), std::move(reduce),
      [](const auto& model, const auto& gathers,
         const auto& reductions) -> Result<std::unique_ptr<Carrier>> {
        return make_message_carrier(model, gathers, reductions);
      });
}

std::unique_ptr<Exchange> make_exchange_by(
    std::unique_ptr<Link> gather,
    std::unique_ptr<Link> reduce,
    MakeCarrier make_carrier) {
  return std::make_unique<CollectiveExchange>(
      std::move(gather), std::move(reduce), std::move(make_carrier));
}

}  // namespace sherd::exchange
