// SPDX-License-Identifier: Apache-2.0
#include "exchange/unit_transport.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>

#include "exchange/coded_shards.h"
#include "exchange/message_reductions.h"
#include "exchange/private_buffers.h"

namespace sherd::exchange {
namespace {

class MessageUnitTransport final : public UnitTransport {
 public:
  MessageUnitTransport(
      const ModelSpec& model,
      std::shared_ptr<world::Transport> gather,
      std::shared_ptr<world::Transport> reduce,
      std::shared_ptr<const ShardCoder> coder)
      : model_(model),
        memories_(model, gather->index()),
        gather_(std::move(gather)),
        reduce_(std::move(reduce)),
        reductions_(model, *reduce_, memories_),
        first_flat_(first_flats(model)) {
    if (coder) {
      coded_.emplace(model, memories_, std::move(coder), gather_->index());
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
    if (replicates()) {
      refresh(unit, generation);
    }
    return unsharded;
  }

  Status gather(const UnitGather& gather, UnshardedUnit* unsharded) override {
    return world::wait_all(*start_gather(gather, unsharded), gather.what);
  }

  std::optional<world::Transfers> start_gather(
      const UnitGather& gather, UnshardedUnit* unsharded) override {
    world::Transfers transfers;
    for (std::size_t f = 0; f < spec(gather.unit).flats.size(); ++f) {
      const auto& layout = spec(gather.unit).flats[f].layout;
      const auto shard = own_shard(gather, static_cast<int>(f));
      for (int peer = 0; peer < gather_->size(); ++peer) {
        const bool here = peer == gather_->index();
        if (!here && gather.receivers[static_cast<std::size_t>(peer)]) {
          transfers.push_back(gather_->send(shard, peer, tag(gather, f)));
          sent_bytes_ += static_cast<std::int64_t>(shard.nbytes());
        }
        if (unsharded == nullptr) {
          continue;
        }
        const auto range = layout.shard(peer);
        const auto part =
            unsharded->flats[f].narrow(0, range.begin, range.numel());
        if (is_coded(gather)) {
          transfers.push_back(
              decode(gather, f, peer, here ? shard : at::Tensor(), part));
        } else if (here) {
          std::memcpy(
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
    for (std::size_t f = 0; f < spec(gather.unit).flats.size(); ++f) {
      const auto& flat = spec(gather.unit).flats[f];
      const auto dtype = gather.precision == Precision::kFull
          ? flat.shard_dtype()
          : flat.unsharded_dtype();
      const auto shard = is_coded(gather)
          ? coded_->room(coded_shard(gather, f, owner))
          : at::empty({flat.layout.shard(owner).numel()}, dtype);
      const auto transfer = gather_->receive(shard, owner, tag(gather, f));
      if (auto status = transfer->wait(gather.what); !status.ok()) {
        return status;
      }
    }
    return {};
  }

  void drop_unit(UnitId unit, const UnshardedUnit&) override {
    memories_.drop_unit(unit);
  }

  void publish(std::uint64_t generation) override {
    const auto units = static_cast<UnitId>(model_.units.size());
    for (UnitId unit = 0; replicates() && unit < units; ++unit) {
      if (memories_.unit_is_open(unit)) {
        refresh(unit, generation);
      }
    }
  }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return memories_.open_gradients(unit);
  }
  void start_reduce(UnitId unit, const ReduceOptions& options) override {
    reductions_.start(unit, options);
  }
  Status progress() override { return reductions_.progress(); }
  std::vector<UnitId> take_ended() override { return reductions_.take_ended(); }
  Status finish() override { return reductions_.finish(); }
  bool reducing() const override { return reductions_.under_way(); }

  void abandon(const Status&) override { reductions_.settle(); }

  void add_to(ExchangeCounters& counters) const override {
    memories_.add_to(counters);
    counters.reduces_under_way_peak = reductions_.under_way_peak();
    counters.gather_sent_bytes = sent_bytes_;
  }

 private:
  const UnitSpec& spec(UnitId unit) const {
    return model_.units[static_cast<std::size_t>(unit)];
  }
  bool is_coded(const UnitGather& gather) const {
    return coded_ && gather.precision == Precision::kParameter;
  }
  static CodedShard coded_shard(
      const UnitGather& gather, std::size_t flat, int owner) {
    return {
        .unit = gather.unit, .flat = static_cast<int>(flat), .owner = owner};
  }
  at::Tensor own_shard(const UnitGather& gather, int flat) {
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
  // Ranks that want the same unit in different precisions send different numbers
  // of bytes before they know it: the tag tells them apart.
  int tag(const UnitGather& gather, std::size_t flat) const {
    const int index = first_flat_[static_cast<std::size_t>(gather.unit)] +
        static_cast<int>(flat);
    return kFlatTag + 2 * index +
        (gather.precision == Precision::kFull ? 1 : 0);
  }
  bool replicates() const {
    return model_.placement == ModelPlacement::kReplicate;
  }

  // A replicated unit is the cast of its shards: brings it up to date.
  void refresh(UnitId unit, std::uint64_t generation) {
    for (std::size_t f = 0; f < spec(unit).flats.size(); ++f) {
      (void)memories_.published_shard(
          unit, static_cast<int>(f), Precision::kParameter, generation);
    }
  }

  // The memories come first: messages under way end before their buffers go.
  const ModelSpec& model_;
  PrivateBuffers memories_;
  const std::shared_ptr<world::Transport> gather_;
  const std::shared_ptr<world::Transport> reduce_;
  MessageReductions reductions_;
  const std::vector<int> first_flat_;
  std::optional<CodedShards> coded_;
  std::atomic<std::int64_t> sent_bytes_ = 0;  // Of shards.
};

}  // namespace

std::unique_ptr<UnitTransport> make_message_unit_transport(
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce,
    std::shared_ptr<const ShardCoder> coder) {
  return std::make_unique<MessageUnitTransport>(
      model, gather, reduce, std::move(coder));
}

}  // namespace sherd::exchange
