// SPDX-License-Identifier: Apache-2.0
#include "exchange/collective_steps.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "exchange/numbers.h"
#include "exchange/recorded_exchange.h"
#include "world/collectives.h"

namespace sherd::exchange {
namespace {

// Tags of the gather transport, beside those of flats. Messages of one peer and tag
// keep their order, so tags need no sequence.
constexpr int kRequestTag = 0;
constexpr int kPayloadTag = 1;
static_assert(kPayloadTag < kFlatTag);

// What a rank tells its peers before a collective step. Travels as bytes.
struct SentRequest {
  CollectiveRequest request;
  std::uint64_t with_shard = 0;
};
static_assert(std::has_unique_object_representations_v<SentRequest>);

}  // namespace

CollectiveSteps::CollectiveSteps(
    world::Transport& transport,
    UnitTransport& unit_transport,
    const ModelSpec& model,
    FlightLog log)
    : transport_(transport),
      unit_transport_(unit_transport),
      unit_names_(unit_names(model)),
      log_(std::move(log)) {}

bool CollectiveSteps::take_assisted() {
  return std::exchange(assisted_, false);
}

Result<std::vector<at::Tensor>> CollectiveSteps::all_gather(
    const at::Tensor& mine, const std::string& what) {
  return world::Collectives(transport_, what, kPayloadTag).all_gather(mine);
}

UnitGather CollectiveSteps::gather_of(const CollectiveRequest& request) const {
  const bool full = request.full_precision != 0;
  return {
      .unit = request.unit,
      .precision = full ? Precision::kFull : Precision::kParameter,
      .generation = request.generation,
      .secondary = !full &&
          unit_transport_.has_secondary(request.unit, request.generation),
      .receivers = std::vector<bool>(transport_.ranks().size(), true),
      .what = describe(request, unit_names_)};
}

Status CollectiveSteps::run_when_agreed(
    CollectiveRequest request, WantedUnit* wanted) {
  bool with_shard = wanted != nullptr && wanted->early.has_value();
  while (true) {
    const auto sent = all_gather_requests(request, with_shard);
    SHERD_RETURN_IF_FAILED(sent.status());
    const auto& requests = sent.value().requests;
    const auto agreed = agree(requests, transport_.ranks(), unit_names_);
    if (!agreed.ok()) {
      return after_all_know(agreed.status());
    }
    const auto& next = agreed.value();
    const bool granted = next == request;
    auto status = settle_early(request, sent.value(), wanted);
    if (status.ok() && next.kind == CollectiveKind::kUnshard) {
      status = gather(next, requests, granted ? wanted : nullptr);
    } else if (status.ok() && next.kind == CollectiveKind::kStartReductions) {
      status = unit_transport_.start_reductions(describe(next, unit_names_));
    }
    if (!status.ok() || granted) {
      return status;
    }
    with_shard = false;
  }
}

Result<CollectiveSteps::SentRequests> CollectiveSteps::all_gather_requests(
    CollectiveRequest& mine, bool with_shard) {
  mine.sequence = sequence_++;
  FlightRecord record{
      .sequence = mine.sequence,
      .unit = mine.unit,
      .event = FlightEvent::kRequested,
      .step = flight_step(mine)};
  log_.record(record);
  const SentRequest sent{mine, with_shard ? 1U : 0U};
  const auto what = "an answer to " + describe(mine, unit_names_);
  const auto all = world::Collectives(transport_, what, kRequestTag)
                       .all_gather(bytes_of(&sent, sizeof(sent)));
  if (!all.ok()) {
    const auto& failure = all.status();
    // A rank that others have answered is not alone with what it does.
    const bool alone = failure.code() == ErrorCode::kDeadlineExceeded &&
        !failure.message().ends_with(world::kHostIsSilent);
    return alone
        ? Status(failure.code(), failure.message() + rule_broken_by(mine))
        : failure;
  }
  SentRequests found;
  for (const auto& bytes : all.value()) {
    SentRequest theirs;
    std::memcpy(&theirs, bytes.const_data_ptr(), sizeof(theirs));
    found.requests.push_back(theirs.request);
    found.with_shard.push_back(theirs.with_shard != 0);
  }
  record.event = FlightEvent::kAgreed;
  log_.record(record);
  return found;
}

// Shards that came with requests: a rank that wants something else than their
// sender receives them for nothing, since the sender waits for that.
Status CollectiveSteps::settle_early(
    const CollectiveRequest& mine,
    const SentRequests& sent,
    WantedUnit* wanted) {
  const auto here = static_cast<std::size_t>(transport_.index());
  for (std::size_t r = 0; r < sent.requests.size(); ++r) {
    if (sent.requests[r] == mine) {
      if (sent.with_shard[here]) {
        wanted->served.insert(r);
      }
    } else if (sent.with_shard[r]) {
      SHERD_RETURN_IF_FAILED(unit_transport_.discard_shard(
          gather_of(sent.requests[r]), static_cast<int>(r)));
    }
  }
  return {};
}

// Sends this rank's shard to the ranks that want the unit and have not got it
// yet. `wanted` is null on a rank that only assists.
Status CollectiveSteps::gather(
    const CollectiveRequest& request,
    const std::vector<CollectiveRequest>& requests,
    WantedUnit* wanted) {
  auto agreed = gather_of(request);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const bool served = wanted != nullptr && wanted->served.contains(r);
    agreed.receivers[r] = requests[r] == request && !served;
  }
  const bool early = wanted != nullptr && wanted->early;
  auto status = unit_transport_.gather(
      agreed, wanted == nullptr || early ? nullptr : wanted->unsharded);
  if (status.ok() && early) {
    status = world::wait_all(*wanted->early, agreed.what);
  }
  const bool by_all = std::ranges::all_of(
      requests, [&](const auto& theirs) { return theirs == request; });
  assisted_ = assisted_ || !by_all;
  if (status.ok() && by_all) {
    unit_transport_.gathered_by_all(agreed, *wanted->unsharded);
  }
  return status;
}

// Every rank has found the same difference, from the same messages. None may
// close before all have those messages: who still waits would find a lost
// rank instead. What becomes of the second round does not matter, hence no
// third one.
Status CollectiveSteps::after_all_know(Status difference) {
  (void)all_gather(bytes_of("", 1), "the same difference");
  return difference;
}

}  // namespace sherd::exchange
