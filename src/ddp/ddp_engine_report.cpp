// SPDX-License-Identifier: Apache-2.0
// The report of DdpEngine.
#include <set>

#include <ATen/Parallel.h>

#include "ddp/ddp_engine.h"

namespace sherd::ddp {

ReplicateReport DdpEngine::report() const {
  const std::lock_guard lock(mu_);
  ReplicateReport report;
  report.module = module_;
  report.world_size = size();
  report.rank = index();
  report.exchange = alone() ? "" : kind_;
  report.threads = at::get_num_threads();
  report.bucket_version = bucket_version_;
  report.backwards = backwards_;
  report.joining = join_.has_value();
  report.error = error_.ok() ? "" : error_.message();
  report.hook = options_.hook ? options_.hook->name() : "";
  report.gradient_bytes = gradient_bytes_;
  report.hook_bytes = hook_bytes_;
  for (const auto& unit : buckets_.units) {
    report.buckets.push_back(unit.flats[0].names);
    report.bucket_bytes.push_back(exchange::unit_bytes(unit));
  }
  for (const auto& times : log_.unit_times()) {
    report.bucket_reduce_s.push_back(seconds(times.reducing));
  }
  std::set<std::string> dtypes;
  for (const auto& parameter : keyed_.parameters()) {
    ++report.parameters;
    report.parameter_bytes +=
        static_cast<std::int64_t>(parameter.tensor.nbytes());
    dtypes.insert(c10::toString(parameter.tensor.scalar_type()));
  }
  report.dtypes.assign(dtypes.begin(), dtypes.end());
  for (std::size_t p = 0; p < used_.size(); ++p) {
    if (!used_[p]) {
      report.unused.push_back(model_.trainable[p].name);
      report.unused_bytes += static_cast<std::int64_t>(tensor(p).nbytes());
    }
  }
  for (const int p : ready_before_) {
    report.ready_order.push_back(
        model_.trainable[static_cast<std::size_t>(p)].name);
  }
  report.same_graph = same_graph_;
  report.last = timer_.last();
  report.mean = timer_.mean();
  if (exchange_) {
    const auto& counters = exchange_->counters();
    report.reduces = reduces_before_ + counters.reduces;
    report.reduces_under_way_peak = counters.reduces_under_way_peak;
    report.gradient_slot_bytes_peak = counters.gradient_bytes_peak;
  }
  return report;
}

}  // namespace sherd::ddp
