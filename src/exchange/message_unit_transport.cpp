// SPDX-License-Identifier: Apache-2.0
#include "exchange/unit_transport.h"

#include <atomic>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/copy_bytes.h"
#include "base/status.h"
#include "exchange/coded_shards.h"
#include "exchange/message_reductions.h"
#include "exchange/private_buffers.h"
#include "exchange/secondary_shards.h"

namespace sherd::exchange {
namespace {

class MessageUnitTransport final : public UnitTransport {
 public:
  MessageUnitTransport(
      const ModelSpec& model,
      std::shared_ptr<world::Transport> gather,
      std::shared_ptr<world::Transport> reduce,
      const GatherOptions& options,
      std::optional<ReduceHook> hook)
      : model_(model),
        memories_(model, gather->index()),
        gather_(std::move(gather)),
        reduce_(std::move(reduce)),
        reductions_(model, *reduce_, memories_, std::move(hook)) {
    if (options.coder) {
      coded_.emplace(model, memories_, options.coder, gather_->index());
    }
    if (options.secondary_ranks > 0) {
      secondary_.emplace(model, gather_->index(), options.secondary_ranks);
    }
  }

  ShardMemory shard(UnitId unit, int flat) const override {
    return memories_.shard(unit, flat);
  }

  std::shared_ptr<UnshardedUnit> open_unit(
      UnitId unit,
      const UnshardOptions& options,
      std::uint64_t generation) override {
    memories_.set_unsharded_bytes_max(options.unsharded_bytes_max);
    auto unsharded = std::make_shared<UnshardedUnit>();
    unsharded->precision = options.precision;
    unsharded->flats = memories_.open_unit(unit, options.precision);
    if (model_.replicates()) {
      memories_.refresh(unit, generation);
    }
    return unsharded;
  }

  Status gather(const UnitGather& gather, UnshardedUnit* unsharded) override {
    return world::wait_all(*start_gather(gather, unsharded), gather.what);
  }

  std::optional<world::Transfers> start_gather(
      const UnitGather& gather, UnshardedUnit* unsharded) override {
    world::Transfers transfers;
    for (std::size_t f = 0; f < model_.unit(gather.unit).flats.size(); ++f) {
      const auto shard = own_shard(gather, static_cast<int>(f));
      for (int peer = 0; peer < gather_->size(); ++peer) {
        if (!takes_part(gather, peer)) {
          continue;
        }
        const bool here = peer == gather_->index();
        if (!here && gather.receivers[static_cast<std::size_t>(peer)]) {
          transfers.push_back(gather_->send(shard, peer, tag(gather, f)));
          sent_bytes_ += static_cast<std::int64_t>(shard.nbytes());
        }
        if (unsharded == nullptr) {
          continue;
        }
        const auto range = part_of(gather, f, peer);
        const auto part =
            unsharded->flats[f].narrow(0, range.begin, range.numel());
        if (is_coded(gather)) {
          transfers.push_back(
              decode(gather, f, peer, here ? shard : at::Tensor(), part));
        } else if (here) {
          copy_bytes(
              part.mutable_data_ptr(), shard.const_data_ptr(), shard.nbytes());
        } else {
          transfers.push_back(gather_->receive(part, peer, tag(gather, f)));
        }
      }
    }
    return transfers;
  }

  // One flat after the other: this memory lies outside every limit.
  Status discard_shard(const UnitGather& gather, int owner) override {
    if (!takes_part(gather, owner)) {
      return {};
    }
    for (std::size_t f = 0; f < model_.unit(gather.unit).flats.size(); ++f) {
      const auto& flat = model_.unit(gather.unit).flats[f];
      const auto dtype = gather.precision == Precision::kFull
          ? flat.shard_dtype()
          : flat.unsharded_dtype();
      const auto shard = is_coded(gather)
          ? coded_->room(coded_shard(gather, f, owner))
          : at::empty({part_of(gather, f, owner).numel()}, dtype);
      const auto transfer = gather_->receive(shard, owner, tag(gather, f));
      SHERD_RETURN_IF_FAILED(transfer->wait(gather.what));
    }
    return {};
  }

  void gathered_by_all(
      const UnitGather& gather, const UnshardedUnit& unsharded) override {
    if (secondary_ && !gather.secondary &&
        gather.precision == Precision::kParameter) {
      secondary_->keep(gather.unit, gather.generation, unsharded);
    }
  }
  bool has_secondary(UnitId unit, std::uint64_t generation) const override {
    return secondary_ && secondary_->has(unit, generation);
  }

  void drop_unit(UnitId unit, const UnshardedUnit&) override {
    memories_.drop_unit(unit);
  }

  void publish(std::uint64_t generation) override {
    memories_.refresh_open_units(generation);
  }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return reductions_.slot(unit);
  }
  void start_reduce(UnitId unit, const ReduceOptions& options) override {
    reductions_.start(unit, options);
  }
  Status progress() override { return reductions_.progress(); }
  std::vector<UnitId> take_ended() override { return reductions_.take_ended(); }
  Status finish() override { return reductions_.finish(); }
  bool reducing() const override { return reductions_.under_way(); }
  void backward_ended() override { reductions_.backward_ended(); }

  void abandon(const Status&) override { reductions_.settle(); }

  void add_to(ExchangeCounters& counters) const override {
    memories_.add_to(counters);
    counters.reduces_under_way_peak = reductions_.under_way_peak();
    counters.gather_sent_bytes = sent_bytes_;
    counters.copied_shard_bytes = secondary_ ? secondary_->bytes() : 0;
  }

 private:
  bool is_coded(const UnitGather& gather) const {
    return coded_ && !gather.secondary &&
        gather.precision == Precision::kParameter;
  }
  // Whether this rank and that one exchange what they have of the unit.
  bool takes_part(const UnitGather& gather, int peer) const {
    return !gather.secondary || secondary_->in_group(peer);
  }
  // The elements of the flat that come from that rank.
  plan::ElementRange part_of(
      const UnitGather& gather, std::size_t flat, int peer) const {
    return gather.secondary
        ? secondary_->part_of(gather.unit, static_cast<int>(flat), peer)
        : model_.unit(gather.unit).flats[flat].layout.shard(peer);
  }
  static CodedShard coded_shard(
      const UnitGather& gather, std::size_t flat, int owner) {
    return {
        .unit = gather.unit, .flat = static_cast<int>(flat), .owner = owner};
  }
  at::Tensor own_shard(const UnitGather& gather, int flat) {
    if (gather.secondary) {
      return secondary_->own(gather.unit, flat);
    }
    return is_coded(gather)
        ? coded_->own(gather.unit, flat, gather.generation)
        : memories_.published_shard(
              gather.unit, flat, gather.precision, gather.generation);
  }
  // `own` is undefined for another rank's shard, which is received.
  std::unique_ptr<world::Transfer> decode(
      const UnitGather& gather,
      std::size_t flat,
      int owner,
      const at::Tensor& own,
      const at::Tensor& part) {
    const auto which = coded_shard(gather, flat, owner);
    if (own.defined()) {
      return coded_->decoded(which, own, part, nullptr);
    }
    const auto room = coded_->room(which);
    return coded_->decoded(
        which, room, part, gather_->receive(room, owner, tag(gather, flat)));
  }
  // Ranks that want the same unit in different precisions, or of different generations, send different
  // numbers of bytes before they know it: the tag tells them apart.
  int tag(const UnitGather& gather, std::size_t flat) const {
    const int index = flat_number(model_, gather.unit, flat);
    const int full = gather.precision == Precision::kFull ? 1 : 0;
    return kFlatTag + 3 * index + (gather.secondary ? 2 : full);
  }

  // The memories come first: messages under way end before their buffers go.
  const ModelSpec& model_;
  PrivateBuffers memories_;
  const std::shared_ptr<world::Transport> gather_;
  const std::shared_ptr<world::Transport> reduce_;
  MessageReductions reductions_;
  std::optional<CodedShards> coded_;
  std::optional<SecondaryShards> secondary_;
  std::atomic<std::int64_t> sent_bytes_ = 0;  // Of shards.
};

}  // namespace

std::unique_ptr<UnitTransport> make_message_unit_transport(
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce,
    const GatherOptions& options,
    std::optional<ReduceHook> hook) {
  return std::make_unique<MessageUnitTransport>(
      model, gather, reduce, options, std::move(hook));
}

}  // namespace sherd::exchange
