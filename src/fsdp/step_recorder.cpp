// SPDX-License-Identifier: Apache-2.0
#include "fsdp/step_recorder.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include "base/resident_memory.h"
#include "fsdp/caching_allocator.h"

namespace sherd::fsdp {

using plan::MemoryMoment;

namespace {

std::atomic<bool> one_records{false};  // Pairs with itself.

}  // namespace

StepRecorder::StepRecorder(int units)
    : counts_(
          CachingAllocator::installed() &&
          !one_records.exchange(true, std::memory_order_acq_rel)),
      claimed_(counts_),
      gathers_(static_cast<std::size_t>(units), 0) {}

StepRecorder::~StepRecorder() { stop(); }

void StepRecorder::stop() {
  const std::lock_guard lock(mu_);
  recording_ = false;
  if (std::exchange(claimed_, false)) {
    one_records.store(false, std::memory_order_release);
  }
}

void StepRecorder::begin_step() {
  const std::lock_guard lock(mu_);
  recording_ = counts();
  record_ = {};
  record_.gather_again_ns.assign(gathers_.size(), 0);
  std::fill(gathers_.begin(), gathers_.end(), 0);
  begin_ = SteadyClock().now();
  gather_ns_ = 0;
  CachingAllocator::take_peak();  // That of earlier steps.
  bytes_max_ = CachingAllocator::bytes();
  resident_bytes_max_ = resident_bytes();
  resident_peak_before_ = resident_bytes_peak();
}

void StepRecorder::add(MemoryMoment moment, int region) {
  record_.events.push_back(
      {.moment = moment,
       .region = region,
       .ns = (SteadyClock().now() - begin_).count(),
       .gather_ns = gather_ns_,
       .bytes = CachingAllocator::bytes(),
       .peak_bytes = CachingAllocator::take_peak()});
  bytes_max_ = std::max(bytes_max_, record_.events.back().peak_bytes);
  resident_bytes_max_ = std::max(resident_bytes_max_, resident_bytes());
}

bool StepRecorder::begin_region(int region, MemoryMoment moment) {
  const std::lock_guard lock(mu_);
  if (!recording_ || inside_region_) {
    return false;
  }
  inside_region_ = true;
  add(moment, region);
  return true;
}

void StepRecorder::end_region(int region, MemoryMoment moment) {
  const std::lock_guard lock(mu_);
  inside_region_ = false;
  if (recording_) {
    add(moment, region);
  }
}

void StepRecorder::note_gather(int unit, Gather gather, Duration waited) {
  const std::lock_guard lock(mu_);
  if (!recording_) {
    return;
  }
  const auto u = static_cast<std::size_t>(unit);
  gathers_[u] += gather == Gather::kBegins ? 1 : 0;
  gather_ns_ += waited.count();
  if (gathers_[u] > 1) {
    record_.gather_again_ns[u] += waited.count();
  }
}

StepRecord StepRecorder::finish_step() {
  const std::lock_guard lock(mu_);
  if (recording_) {
    add(MemoryMoment::kStepEnds, -1);
  }
  recording_ = false;
  // What is in use most and what is resident most come about together. The kernel's peak counts if
  // it is from this step.
  if (const auto peak = resident_bytes_peak(); peak > resident_peak_before_) {
    resident_bytes_max_ = peak;
  }
  record_.always_bytes = resident_bytes_max_ - bytes_max_;
  return std::move(record_);
}

}  // namespace sherd::fsdp
