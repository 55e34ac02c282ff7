// SPDX-License-Identifier: Apache-2.0
#include "exchange/stream_unit_transport.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/check.h"
#include "base/status.h"
#include "exchange/device_buffers.h"
#include "exchange/numbers.h"
#include "exchange/secondary_shards.h"
#include "exchange/stream_reductions.h"
#include "world/collectives.h"

namespace sherd::exchange {
namespace {

// Coded shards begin where tensors of their own would, and can be viewed in other dtypes.
constexpr std::int64_t kCodedMultiple = 64;

device::AllocateTensor allocator_of(
    const BackendPtr& backend, c10::Device device) {
  if (!backend->supportsTensorAlloc(device.index())) {
    return {};
  }
  return [backend](std::int64_t numel, const at::TensorOptions& options) {
    return backend->allocateTensor(numel, options);
  };
}

DeviceAllocators allocators_of(const DeviceBackends& backends) {
  if (!backends.memory_from_backend) {
    return {};
  }
  // NCCL allocates only for communicators that are connected, which all ranks do together. The
  // exchange of the replicate axis, which is opened first, has connected that one.
  const auto& reduce = backends.reduce.backend;
  backends.gather->eagerConnectSingleDevice(backends.device);
  reduce->eagerConnectSingleDevice(backends.device);
  return {
      .gathers = allocator_of(backends.gather, backends.device),
      .reductions = allocator_of(reduce, backends.device),
      .across = backends.across
          ? allocator_of(backends.across->backend, backends.device)
          : device::AllocateTensor()};
}

// A hook's, or a new one.
device::Stream stream_across(const DeviceBackends& backends) {
  if (!backends.across) {
    return {};
  }
  const auto& hook = backends.across->hook;
  return hook && !hook->stream.is_null()
      ? hook->stream
      : device::Stream::with_high_priority(backends.device);
}

class StreamUnitTransport final : public UnitTransport {
 public:
  StreamUnitTransport(
      const ModelSpec& model,
      std::shared_ptr<world::Transport> transport,
      const DeviceBackends& backends)
      : model_(model),
        transport_(std::move(transport)),
        gather_backend_(backends.gather),
        group_backend_(backends.secondary),
        buffers_(
            model,
            transport_->index(),
            backends.device,
            backends.reduce.hook ? backends.reduce.hook->stream
                                 : device::Stream(),
            stream_across(backends),
            allocators_of(backends)),
        reductions_(model, backends, buffers_) {
    const auto& gathers = backends.gathers;
    if (gathers.secondary_ranks > 0) {
      secondary_.emplace(
          model, transport_->index(), gathers.secondary_ranks, backends.device);
    }
    if (gathers.coder) {
      coded_.emplace(
          model, buffers_.places, gathers.coder, transport_->index(),
          kCodedMultiple);
    }
  }

  // Memory of slots is freed to these streams, although the caller's stream may still use it.
  // Memory of shards is freed to the caller's stream, although these streams may still use it if a
  // backward was not ended.
  ~StreamUnitTransport() override {
    const auto now = compute().record();
    for (const auto& stream :
         {buffers_.gather_stream, buffers_.reduce_stream,
          buffers_.across_stream}) {
      stream.wait(now);
      compute().wait(stream.record());
    }
  }
  StreamUnitTransport(const StreamUnitTransport&) = delete;
  StreamUnitTransport& operator=(const StreamUnitTransport&) = delete;

  ShardMemory shard(UnitId unit, int flat) const override {
    return buffers_.places.shard(unit, flat);
  }

  std::shared_ptr<UnshardedUnit> open_unit(
      UnitId unit,
      const UnshardOptions& options,
      std::uint64_t generation) override {
    shards_have_values_ = true;
    buffers_.places.set_unsharded_bytes_max(options.unsharded_bytes_max);
    auto unsharded = std::make_shared<UnshardedUnit>();
    unsharded->precision = options.precision;
    unsharded->flats = buffers_.places.open_unit(unit, options.precision);
    if (model_.replicates()) {
      buffers_.places.refresh(unit, generation);
      return unsharded;
    }
    numbers_[unit] = reductions_.gather_begins();
    for (const auto& place : places_outside_pool(unit, *unsharded)) {
      buffers_.uses.record(place, compute());  // Whose memory it is.
    }
    shards_are_written();
    return unsharded;
  }

  Status gather(const UnitGather& gather, UnshardedUnit* unsharded) override {
    auto status = start_reductions(gather.what);
    return status.ok()
        ? started(gather.what, [&] { put_into_stream(gather, unsharded); })
        : status;
  }

  void gathered_by_all(
      const UnitGather& gather, const UnshardedUnit& unsharded) override {
    if (secondary_ && !gather.secondary &&
        gather.precision == Precision::kParameter) {
      const device::CurrentStream on(buffers_.gather_stream);
      secondary_->keep(gather.unit, gather.generation, unsharded);
      // Who waits for the gather waits for the copy, so that a captured step has all of it.
      const auto kept = buffers_.gather_stream.record();
      const std::lock_guard lock(mu_);
      gathered_.at(gather.unit).done = kept;
    }
  }
  bool has_secondary(UnitId unit, std::uint64_t generation) const override {
    return secondary_ && secondary_->has(unit, generation);
  }

  void use_unit(UnitId unit) override {
    if (model_.replicates()) {
      return;  // It lies where the caller's stream writes it.
    }
    reductions_.gather_is_over(numbers_.at(unit));
    device::Event done;
    {
      const std::lock_guard lock(mu_);
      const auto& gather = gathered_.at(unit);
      done = gather.done;
      gathers_seen_ = std::max(gathers_seen_, gather.number);
    }
    compute().wait(done);
    if (model_.shards_on_host && model_.host_writes_shards) {
      done.synchronize();  // The host may write shards at any time afterwards.
    }
  }

  void drop_unit(UnitId unit, const UnshardedUnit& unsharded) override {
    const auto outside = places_outside_pool(unit, unsharded);
    for (const auto& place : outside) {
      buffers_.uses.forget(place);
    }
    if (outside.empty() && !model_.replicates()) {
      buffers_.uses.record(place_of_slot(unsharded.flats), compute());
    }
    buffers_.places.drop_unit(unit);
  }

  // The optimizer has written the shards on the current stream.
  void publish(std::uint64_t generation) override {
    shards_have_values_ = true;
    buffers_.places.refresh_open_units(generation);
    const std::lock_guard lock(mu_);
    shards_written_ = compute().record();
    gathers_wait_ = true;
  }

  std::vector<at::Tensor> gradient_slot(UnitId unit) override {
    const bool is_new = !buffers_.places.gradients_are_open(unit);
    if (is_new) {
      reductions_.reclaim();
    }
    const auto& flats = buffers_.places.open_gradients(unit);
    if (is_new) {
      buffers_.uses.wait(place_of_slot(flats), compute());
    }
    return flats;
  }
  std::optional<std::uint64_t> begin_round() override {
    return shards_have_values_ ? reductions_.begin_round() : std::nullopt;
  }
  void round_is_over(std::uint64_t number) override {
    reductions_.gather_is_over(number);
  }
  // Gathers and rounds are the moments at which ranks do the same thing.
  Status start_reductions(const std::string& what) override {
    auto open = reductions_.open_units();
    const auto all = world::Collectives(*transport_, what, kFlatTag)
                         .all_gather(bytes_of(open.data(), open.size()));
    SHERD_RETURN_IF_FAILED(all.status());
    for (const auto& theirs : all.value()) {
      const auto* marks = theirs.const_data_ptr<std::uint8_t>();
      for (std::size_t u = 0; u < open.size(); ++u) {
        open[u] = open[u] != 0 && marks[u] != 0 ? 1 : 0;
      }
    }
    return started("reductions", [&] { reductions_.start_units(open); });
  }
  // progress() tells a failure.
  void start_reduce(UnitId unit, const ReduceOptions& options) override {
    shards_are_written();
    if (reduce_failure_.ok()) {
      reduce_failure_ = started(
          "reduction of unit " + model_.unit(unit).name,
          [&] { reductions_.start(unit, options); });
    }
  }
  Status progress() override {
    reductions_.reclaim();
    return reduce_failure_;
  }
  std::vector<UnitId> take_ended() override { return reductions_.take_ended(); }

  // All ranks are at the end of the same backward and have asked for the same reductions.
  Status finish() override {
    auto status = reduce_failure_;
    if (status.ok()) {
      status = started("reductions", [&] {
        reductions_.start_units(reductions_.open_units());
        reductions_.start_rest_across();
      });
    }
    reductions_.finish();
    // Shards may be written next, also those that were gathered for others.
    device::Event gathers;
    {
      const std::lock_guard lock(mu_);
      if (gathers_seen_ < gathers_) {
        gathers = buffers_.gather_stream.record();
        compute().wait(gathers);
        gathers_seen_ = gathers_;
      }
    }
    if (model_.shards_on_host && model_.host_writes_shards) {
      gathers.synchronize();
    }
    return status;
  }
  bool reducing() const override { return reductions_.under_way(); }

  void synchronize() override {
    buffers_.synchronize();
    const std::lock_guard lock(mu_);
    shards_written_.reset();
    gathers_wait_ = true;
    for (auto& [unit, gather] : gathered_) {
      gather.done = {};
    }
  }

  void abandon(const Status&) override {
    gather_backend_->abort();
    if (group_backend_) {
      group_backend_->abort();
    }
    reductions_.abandon();
  }

  void add_to(ExchangeCounters& counters) const override {
    buffers_.places.add_to(counters);
    counters.reduces_under_way_peak = reductions_.under_way_peak();
    counters.gather_sent_bytes = sent_bytes_;
    counters.copied_shard_bytes = secondary_ ? secondary_->bytes() : 0;
    counters.memory_from_backend = buffers_.allocators.gathers != nullptr;
  }

 private:
  // The stream of the calling thread, which computes with units.
  device::Stream compute() const {
    return device::Stream::current(buffers_.device);
  }
  // Before the first gather of a generation: shards are written on the caller's stream.
  void shards_are_written() {
    const std::lock_guard lock(mu_);
    if (!shards_written_) {
      shards_written_ = compute().record();
    }
  }
  template <typename Action>
  static Status started(const std::string& what, const Action& action) {
    return status_of(
        action, ErrorCode::kUnavailable, "[exchange] " + what + ": ");
  }
  // In full precision a unit that is cast has memory of its own for each flat.
  std::vector<device::Place> places_outside_pool(
      UnitId unit, const UnshardedUnit& unsharded) const {
    std::vector<device::Place> places;
    if (!model_.replicates() && unsharded.precision == Precision::kFull &&
        is_cast(model_.unit(unit))) {
      for (const auto& flat : unsharded.flats) {
        places.push_back(device::Place::of(flat));
      }
    }
    return places;
  }

  // `unsharded` is null on a rank that only assists.
  void put_into_stream(const UnitGather& gather, UnshardedUnit* unsharded) {
    const auto& stream = buffers_.gather_stream;
    const device::CurrentStream on(stream);
    wait_for_shards();
    if (unsharded != nullptr) {
      wait_for_room(gather.unit, *unsharded);
    }
    {
      const std::lock_guard lock(buffers_.backend_mu);
      for (std::size_t f = 0; f < model_.unit(gather.unit).flats.size(); ++f) {
        put_into_stream(gather, static_cast<int>(f), unsharded);
      }
    }
    const std::lock_guard lock(mu_);
    ++gathers_;
    if (unsharded != nullptr) {
      gathered_[gather.unit] = {stream.record(), gathers_};
    }
  }

  // One flat, from all ranks, or from this rank's group.
  void put_into_stream(
      const UnitGather& gather, int flat, UnshardedUnit* unsharded) {
    const auto f = static_cast<std::size_t>(flat);
    if (coded_ && !gather.secondary &&
        gather.precision == Precision::kParameter) {
      put_coded_into_stream(
          gather, flat,
          unsharded != nullptr ? unsharded->flats[f] : at::Tensor());
      return;
    }
    const auto layout = gather.secondary
        ? secondary_->layout_of(gather.unit, flat)
        : model_.unit(gather.unit).flats[f].layout;
    const auto shard = gather.secondary ? secondary_->own(gather.unit, flat)
                                        : published_shard(gather, flat);
    const auto whole = unsharded != nullptr
        ? unsharded->flats[f]
        : at::empty({layout.numel}, shard.options());
    gather_flat(
        gather.secondary ? group_backend_ : gather_backend_, layout, shard,
        whole);
    count_sent(shard, layout);
  }

  // On the device, of this rank.
  at::Tensor published_shard(const UnitGather& gather, int flat) {
    const auto shard = buffers_.places.published_shard(
        gather.unit, flat, gather.precision, gather.generation);
    if (!model_.shards_on_host) {
      return shard;
    }
    // A copy that casts as well would be made on the host, which would wait for it.
    const auto& spec_of_flat =
        model_.unit(gather.unit).flats[static_cast<std::size_t>(flat)];
    return shard
        .to(buffers_.device, spec_of_flat.shard_dtype(), /*non_blocking=*/true)
        .to(gather.precision == Precision::kFull
                ? spec_of_flat.shard_dtype()
                : spec_of_flat.unsharded_dtype());
  }

  // `whole` is undefined on a rank that only assists.
  void put_coded_into_stream(
      const UnitGather& gather, int flat, const at::Tensor& whole) {
    const auto own = coded_->own(gather.unit, flat, gather.generation);
    const auto layout = coded_->layout_of(gather.unit, flat);
    const auto sent = at::empty({layout.numel}, own.options());
    gather_flat(gather_backend_, layout, own, sent);
    count_sent(own, layout);
    const auto& parts =
        model_.unit(gather.unit).flats[static_cast<std::size_t>(flat)].layout;
    for (int owner = 0; whole.defined() && owner < layout.ranks(); ++owner) {
      const auto from = layout.shard(owner);
      const auto to = parts.shard(owner);
      coded_->decode(
          {.unit = gather.unit, .flat = flat, .owner = owner},
          sent.narrow(0, from.begin, from.numel()),
          whole.narrow(0, to.begin, to.numel()));
    }
  }

  void count_sent(const at::Tensor& own, const plan::FlatLayout& layout) {
    sent_bytes_ +=
        static_cast<std::int64_t>(own.nbytes()) * (layout.ranks() - 1);
  }

  // The stream of gathers, once for each time that shards were written.
  void wait_for_shards() {
    const std::lock_guard lock(mu_);
    if (gathers_wait_ && shards_written_) {
      buffers_.gather_stream.wait(*shards_written_);
      gathers_wait_ = false;
    }
  }
  // Others may still use what lies where the unit will be.
  void wait_for_room(UnitId unit, const UnshardedUnit& unsharded) {
    auto places = places_outside_pool(unit, unsharded);
    if (places.empty()) {
      places.push_back(place_of_slot(unsharded.flats));
    }
    for (const auto& place : places) {
      buffers_.uses.wait(place, buffers_.gather_stream);
    }
  }

  struct Gathered {
    device::Event done;
    std::uint64_t number = 0;
  };

  const ModelSpec& model_;
  const std::shared_ptr<world::Transport> transport_;
  const BackendPtr gather_backend_;
  const BackendPtr group_backend_;  // For secondary shards; else null.
  DeviceBuffers buffers_;
  std::optional<SecondaryShards> secondary_;
  std::optional<CodedShards> coded_;
  StreamReductions reductions_;
  std::atomic<std::int64_t> sent_bytes_ = 0;  // Of shards.
  std::map<UnitId, std::uint64_t> numbers_;   // Of the last gather of a unit.
  Status reduce_failure_;
  // The caller has gathered or published. Before, in a round this rank might assist a gather without
  // having given its shards their values.
  bool shards_have_values_ = false;
  std::mutex mu_;
  // Guarded by mu_:
  std::optional<device::Event> shards_written_;
  bool gathers_wait_ = true;             // No gather has waited for it yet.
  std::map<UnitId, Gathered> gathered_;  // By unit, its last gather.
  std::uint64_t gathers_ = 0;
  std::uint64_t gathers_seen_ = 0;  // The caller's stream has waited for them.
};

}  // namespace

MakeUnitTransport over_devices(DeviceBackends backends) {
  return [backends = std::move(backends)](
             const ModelSpec& model,
             const std::shared_ptr<world::Transport>& gather,
             const std::shared_ptr<world::Transport>& /*reduce*/)
             -> Result<std::unique_ptr<UnitTransport>> {
    return std::unique_ptr<UnitTransport>(
        std::make_unique<StreamUnitTransport>(model, gather, backends));
  };
}

}  // namespace sherd::exchange
