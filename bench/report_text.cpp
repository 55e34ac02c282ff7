// SPDX-License-Identifier: Apache-2.0
#include "bench/report_text.h"

#include <cmath>

namespace sherd::bench {

std::string interval_text(const MedianEstimate& estimate, int digits) {
  return std::isfinite(estimate.low)
      ? format("%.*f-%.*f", digits, estimate.low, digits, estimate.high)
      : "open";
}

std::string median_text(const std::vector<double>& values) {
  if (values.empty()) {
    return "-";
  }
  const auto found = estimate_median(values);
  return format("%.3f (", found.median) + interval_text(found, 3) + ")";
}

Json number(std::optional<double> value) {
  return value && std::isfinite(*value)
      ? Json(std::stod(format("%.5g", *value)))
      : Json(nullptr);
}

void put(
    Json& json,
    const std::string& name,
    const std::optional<MedianEstimate>& estimate) {
  const auto part = [&](double MedianEstimate::* member) {
    return estimate ? number((*estimate).*member) : Json(nullptr);
  };
  json[name] = part(&MedianEstimate::median);
  json[name + "_low"] = part(&MedianEstimate::low);
  json[name + "_high"] = part(&MedianEstimate::high);
}

void put(Json& json, const BenchmarkContext& context) {
  json["sherd_version"] = context.sherd_version;
  json["commit"] = context.commit;
  json["build"] = context.build;
  json["machine"] = context.machine;
}

}  // namespace sherd::bench
