// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/copy_bytes.h"
#include "base/status.h"
#include "exchange/hierarchical_reductions.h"
#include "exchange/host_layout.h"
#include "exchange/host_topology.h"
#include "exchange/message_reductions.h"
#include "exchange/private_buffers.h"
#include "exchange/shared_unit_buffers.h"
#include "exchange/unit_transport.h"
#include "shm/waiter.h"
#include "world/collectives.h"
#include "world/host_segment.h"

namespace sherd::exchange {
namespace {

using shm::Counter;
using shm::HostSegment;

class HierarchicalUnitTransport final : public UnitTransport {
 public:
  HierarchicalUnitTransport(
      const ModelSpec& model,
      HostTopology map,
      HostLayout layout,
      std::shared_ptr<HostSegment> segment,
      Duration deadline,
      std::shared_ptr<world::Transport> gather,
      std::shared_ptr<world::Transport> reduce);
  ~HierarchicalUnitTransport() override { leave({}); }
  HierarchicalUnitTransport(const HierarchicalUnitTransport&) = delete;
  HierarchicalUnitTransport& operator=(const HierarchicalUnitTransport&) =
      delete;

  ShardMemory shard(UnitId unit, int flat) const override {
    return memories_.shard(unit, flat);
  }

  std::shared_ptr<UnshardedUnit> open_unit(
      UnitId, const UnshardOptions& options, std::uint64_t) override {
    // Relaxed: a number by itself.
    bytes_max_.store(options.unsharded_bytes_max, std::memory_order_relaxed);
    auto unsharded = std::make_shared<UnshardedUnit>();
    unsharded->precision = options.precision;
    return unsharded;
  }
  Status gather(const UnitGather& gather, UnshardedUnit* unsharded) override;
  void drop_unit(UnitId unit, const UnshardedUnit& unsharded) override {
    if (unsharded.precision != Precision::kFull) {
      drop(unit);
    }
  }
  void publish(std::uint64_t) override {}

  void begin_backward() override { sums_->begin_backward(); }
  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    return sums_->slot(unit);
  }
  void start_reduce(UnitId unit, const ReduceOptions& options) override {
    sums_->start(unit, options);
  }
  Status progress() override { return sums_->progress(); }
  std::vector<UnitId> take_ended() override { return sums_->take_ended(); }
  Status finish() override { return sums_->finish(); }
  bool reducing() const override { return sums_->under_way(); }

  void abandon(const Status& why) override {
    leave(why);
    sums_->settle();
  }
  void add_to(ExchangeCounters& counters) const override {
    memories_.add_to(counters);
    sums_->add_to(counters);
    counters.gather_sent_bytes = sent_bytes_;
    counters.slot_bytes = slot_bytes_.load(std::memory_order_relaxed);
    counters.slot_bytes_peak = slot_bytes_peak_.load(std::memory_order_relaxed);
  }

 private:
  template <typename T>
  std::span<T> at(std::int64_t offset, std::size_t count) const {
    return segment_->at<T>(static_cast<std::size_t>(offset), count);
  }
  HostLayout::GatherBufferRecord& buffer_record() const {
    return at<HostLayout::GatherBufferRecord>(layout_.buffer_record, 1).front();
  }
  HostLayout::GatherProgress& state(int local) const {
    const auto locals = static_cast<std::size_t>(map_.local_ranks());
    return at<HostLayout::GatherProgress>(
        layout_.states, locals)[static_cast<std::size_t>(local)];
  }
  std::span<std::uint64_t> dropped() const {
    return at<std::uint64_t>(
        layout_.dropped,
        static_cast<std::size_t>(map_.local_ranks()) * model_.units.size());
  }
  bool wanted_on(const UnitGather& gather, int host) const {
    const auto& ranks = map_.on(host);
    return std::ranges::any_of(ranks, [&](int rank) {
      return gather.receivers[static_cast<std::size_t>(rank)];
    });
  }

  void drop(UnitId unit);
  Status place_unit(const UnitGather& gather, std::vector<at::Tensor>& flats);
  std::int64_t allocate(const UnitGather& gather, std::int64_t bytes);
  Status move(const UnitGather& gather, const std::vector<at::Tensor>& flats);
  Status wait_for_neighbours(const UnitGather& gather);
  void leave(const Status& why);

  // Whatever messages read and write lies before the transports and goes after them.
  const ModelSpec& model_;
  const HostTopology map_;
  const HostLayout layout_;
  const std::shared_ptr<HostSegment> segment_;
  const SteadyClock clock_;
  const shm::Waiter waiter_;
  // For a neighbour that may itself wait as long for another host.
  const shm::Waiter patient_waiter_;
  PrivateBuffers memories_;
  const std::shared_ptr<world::Transport> gather_;
  const std::shared_ptr<world::Transport> reduce_;
  std::atomic<std::int64_t> sent_bytes_ = 0;  // Of shards.
  std::optional<SharedUnitBuffers> buffers_;  // Of the first rank of a host.
  std::uint64_t gathers_ = 0;                 // Of the thread that gathers.
  std::atomic<std::int64_t> bytes_max_;
  std::atomic<std::int64_t> slot_bytes_ = 0;
  std::atomic<std::int64_t> slot_bytes_peak_ = 0;
  std::atomic<bool> left_ = false;
  std::optional<HierarchicalReductions>
      sums_;  // The last member: its threads use others.
};

HierarchicalUnitTransport::HierarchicalUnitTransport(
    const ModelSpec& model,
    HostTopology map,
    HostLayout layout,
    std::shared_ptr<HostSegment> segment,
    Duration deadline,
    std::shared_ptr<world::Transport> gather,
    std::shared_ptr<world::Transport> reduce)
    : model_(model),
      map_(std::move(map)),
      layout_(std::move(layout)),
      segment_(std::move(segment)),
      waiter_(segment_->peers(), clock_, {.deadline = deadline}),
      patient_waiter_(segment_->peers(), clock_, {.deadline = 2 * deadline}),
      memories_(model_, map_.rank()),
      gather_(std::move(gather)),
      reduce_(std::move(reduce)),
      bytes_max_(model_.unsharded_bytes_max) {
  if (map_.local_rank() == 0) {
    buffers_.emplace(
        at<std::byte>(
            layout_.units, static_cast<std::size_t>(layout_.unit_region_bytes)),
        dropped(), static_cast<int>(model_.units.size()));
  }
  SharedGradientSlots::Mapping mapping{
      .model = &model_,
      .rank = map_.local_rank(),
      .regions = {},
      .region_bytes = layout_.slot_region_bytes,
      .slots = nullptr,
      .heap_bytes = layout_.heap_bytes,
      .segment = segment_};
  const auto slots =
      static_cast<std::size_t>(map_.local_ranks()) * model_.units.size();
  if (slots > 0) {
    mapping.slots = at<SharedSlotState>(layout_.slots, slots).data();
  }
  for (const auto region : layout_.slot_regions) {
    mapping.regions.push_back(
        at<std::byte>(
            region,
            static_cast<std::size_t>(
                layout_.slot_region_bytes + layout_.heap_bytes))
            .data());
  }
  sums_.emplace(model_, map_, memories_, *reduce_, waiter_, std::move(mapping));
}

// Release: pairs with the rank that allocates the buffer again.
void HierarchicalUnitTransport::drop(UnitId unit) {
  auto& mine = dropped()
      [static_cast<std::size_t>(map_.local_rank()) * model_.units.size() +
       static_cast<std::size_t>(unit)];
  std::atomic_ref(mine).fetch_add(1, std::memory_order_release);
}

Status HierarchicalUnitTransport::gather(
    const UnitGather& gather, UnshardedUnit* unsharded) {
  ++gathers_;
  std::vector<at::Tensor> flats;
  if (wanted_on(gather, map_.host())) {
    SHERD_RETURN_IF_FAILED(place_unit(gather, flats));
  }
  SHERD_RETURN_IF_FAILED(move(gather, flats));
  Counter(state(map_.local_rank()).arrived).post(gathers_);
  if (unsharded == nullptr) {
    return {};
  }
  auto status = wait_for_neighbours(gather);
  // A unit in full precision is private to each rank.
  for (const auto& flat : flats) {
    const bool passing = unsharded->precision == Precision::kFull;
    unsharded->flats.push_back(passing && status.ok() ? flat.clone() : flat);
  }
  if (unsharded->precision == Precision::kFull) {
    drop(gather.unit);
  }
  return status;
}

// All ranks of a host allocate from it in the order of gathers, so that one of them
// can say where: the first.
Status HierarchicalUnitTransport::place_unit(
    const UnitGather& gather, std::vector<at::Tensor>& flats) {
  const auto dtype = gather.precision == Precision::kFull
      ? &FlatSpec::shard_dtype
      : &FlatSpec::unsharded_dtype;
  const auto& spec = model_.unit(gather.unit);
  Counter placed(buffer_record().placed);
  if (buffers_) {
    buffer_record().begin = allocate(gather, flat_offsets(spec, dtype).back());
    for (int local = 0; local < map_.local_ranks(); ++local) {
      state(local).slot_bytes = buffers_->allocated_bytes_of(local);
    }
    placed.post(gathers_);
  } else {
    const std::string what = "a buffer to " + gather.what;
    SHERD_RETURN_IF_FAILED(
        waiter_.wait(placed, gathers_, {.rank = 0, .what = what}));
  }
  const auto bytes = state(map_.local_rank()).slot_bytes;
  slot_bytes_.store(bytes, std::memory_order_relaxed);
  slot_bytes_peak_.store(
      std::max(bytes, slot_bytes_peak_.load(std::memory_order_relaxed)),
      std::memory_order_relaxed);
  auto* memory =
      at<std::byte>(
          layout_.units, static_cast<std::size_t>(layout_.unit_region_bytes))
          .data() +
      buffer_record().begin;
  flats = flats_at(memory, spec, dtype);
  return {};
}

std::int64_t HierarchicalUnitTransport::allocate(
    const UnitGather& gather, std::int64_t bytes) {
  SharedUnitBuffers::Request request{
      .unit = gather.unit,
      .bytes = bytes,
      .wanted = {},
      .bytes_max = bytes_max_.load(std::memory_order_relaxed),
      .passing = gather.precision == Precision::kFull};
  for (const int rank : map_.neighbours()) {
    request.wanted.push_back(gather.receivers[static_cast<std::size_t>(rank)]);
  }
  return buffers_->allocate(request);
}

// Sends this rank's shard to its proxies where the unit is wanted. `flats`, empty where it is not
// wanted here, get the shards of the ranks whose proxy this one is.
Status HierarchicalUnitTransport::move(
    const UnitGather& gather, const std::vector<at::Tensor>& flats) {
  world::Transfers transfers;
  for (std::size_t f = 0; f < model_.unit(gather.unit).flats.size(); ++f) {
    const auto& layout = model_.unit(gather.unit).flats[f].layout;
    const int tag = kFlatTag + flat_number(model_, gather.unit, f);
    const auto shard = memories_.published_shard(
        gather.unit, static_cast<int>(f), gather.precision, gather.generation);
    for (int host = 0; host < map_.hosts(); ++host) {
      if (host != map_.host() && wanted_on(gather, host)) {
        transfers.push_back(
            gather_->send(shard, map_.proxy_of(map_.rank(), host), tag));
        sent_bytes_ += static_cast<std::int64_t>(shard.nbytes());
      }
    }
    for (const int owner : map_.proxied_ranks()) {
      if (flats.empty()) {
        break;
      }
      const auto range = layout.shard(owner);
      const auto part = flats[f].narrow(0, range.begin, range.numel());
      if (owner == map_.rank()) {
        copy_bytes(
            part.mutable_data_ptr(), shard.const_data_ptr(), shard.nbytes());
      } else {
        transfers.push_back(gather_->receive(part, owner, tag));
      }
    }
  }
  return world::wait_all(transfers, gather.what);
}

Status HierarchicalUnitTransport::wait_for_neighbours(
    const UnitGather& gather) {
  for (int local = 0; local < map_.local_ranks(); ++local) {
    if (local == map_.local_rank()) {
      continue;
    }
    SHERD_RETURN_IF_FAILED(patient_waiter_.wait(
        Counter(state(local).arrived), gathers_,
        {.rank = local, .what = gather.what}));
  }
  return {};
}

void HierarchicalUnitTransport::leave(const Status& why) {
  if (left_.exchange(true)) {
    return;
  }
  if (why.ok()) {
    segment_->peers().leave();
  } else {
    segment_->peers().give_up(why.message());
  }
}

// Who could not get the memory tells the others, which have other memory.
Status tell_all(world::Transport& transport, const Status& mine) {
  const auto all =
      world::Collectives(transport, "what hosts share with their ranks")
          .all_gather_texts(mine.ok() ? "" : mine.message());
  if (!all.ok() || !mine.ok()) {
    return mine.ok() ? all.status() : mine;
  }
  for (std::size_t i = 0; i < all.value().size(); ++i) {
    if (!all.value()[i].empty()) {
      return {
          ErrorCode::kUnavailable,
          str("[exchange] rank ", transport.world_rank(static_cast<int>(i)),
              " cannot share memory: ", all.value()[i])};
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<UnitTransport>> make_hierarchical_unit_transport(
    const World& world,
    const std::string& name,
    const std::vector<std::vector<int>>& hosts,
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce) {
  HostTopology map(hosts, gather->index());
  std::vector<int> world_ranks;
  for (const int rank : map.neighbours()) {
    world_ranks.push_back(gather->world_rank(rank));
  }
  auto layout = plan_host_layout(model, map.local_ranks());
  auto segment = world::share_memory(
      world, str(name, "/host", map.host()), world_ranks,
      {.bytes = static_cast<std::size_t>(layout.bytes),
       .touched_bytes = static_cast<std::size_t>(layout.touched_bytes)});
  SHERD_RETURN_IF_FAILED(tell_all(*gather, segment.status()));
  return std::unique_ptr<UnitTransport>(
      std::make_unique<HierarchicalUnitTransport>(
          model, std::move(map), std::move(layout),
          std::make_shared<HostSegment>(std::move(segment).value()),
          world.options().deadline, gather, reduce));
}

}  // namespace sherd::exchange
