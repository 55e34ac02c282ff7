// SPDX-License-Identifier: Apache-2.0
#include "fsdp/step_recorder.h"

#include <algorithm>
#include <utility>

namespace sherd::fsdp {

using plan::MemoryMoment;

StepRecorder::StepRecorder(int units, std::shared_ptr<MemoryMeter> meter)
    : meter_(std::move(meter)),
      counts_(meter_->counts() && meter_->claim()),
      claimed_(counts_),
      gathers_(static_cast<std::size_t>(units), 0) {}

StepRecorder::~StepRecorder() { stop(); }

void StepRecorder::stop() {
  const std::lock_guard lock(mu_);
  recording_ = false;
  if (std::exchange(claimed_, false)) {
    meter_->unclaim();
  }
}

void StepRecorder::begin_step() {
  const std::lock_guard lock(mu_);
  recording_ = counts();
  record_ = {};
  record_.gather_again_ns.assign(gathers_.size(), 0);
  std::fill(gathers_.begin(), gathers_.end(), 0);
  gather_ns_ = 0;
  if (recording_) {
    meter_->settle();
    (void)meter_->take_peak();  // That of earlier steps.
    bytes_max_ = meter_->bytes();
    total_bytes_max_ = meter_->total_bytes();
    total_peak_before_ = meter_->total_bytes_peak();
  }
  begin_ = SteadyClock().now();
}

void StepRecorder::add(MemoryMoment moment, int region) {
  meter_->settle();
  record_.events.push_back(
      {.moment = moment,
       .region = region,
       .ns = (SteadyClock().now() - begin_).count(),
       .gather_ns = gather_ns_,
       .bytes = meter_->bytes(),
       .peak_bytes = meter_->take_peak()});
  bytes_max_ = std::max(bytes_max_, record_.events.back().peak_bytes);
  total_bytes_max_ = std::max(total_bytes_max_, meter_->total_bytes());
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

void StepRecorder::settle() const {
  const std::lock_guard lock(mu_);
  if (recording_) {
    meter_->settle();
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

StepRecorder::Record StepRecorder::finish_step() {
  const std::lock_guard lock(mu_);
  if (recording_) {
    add(MemoryMoment::kStepEnds, -1);
  }
  recording_ = false;
  // What is in use most and what there is most come about together. The peak counts if it is from
  // this step.
  if (const auto peak = meter_->total_bytes_peak(); peak > total_peak_before_) {
    total_bytes_max_ = peak;
  }
  record_.always_bytes = total_bytes_max_ - bytes_max_;
  return std::move(record_);
}

}  // namespace sherd::fsdp
