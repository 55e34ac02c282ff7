// SPDX-License-Identifier: Apache-2.0
//
// Formats a ReplicateReport for people and for programs.
#include <string>
#include <vector>
#include <sherd/ddp/replicate.h>
#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"

namespace sherd {
namespace {

std::string line_of(
    const std::string& name,
    std::int64_t bytes,
    std::size_t parameters,
    double reduce_s) {
  return padded(name, 8) +
      columns(
             "%14lld %11zu %10.3f\n", static_cast<long long>(bytes), parameters,
             reduce_s);
}

std::string json_of(const std::vector<std::string>& texts) {
  return json_array(texts, [](const auto& text) { return json_string(text); });
}

template <typename Number>
std::string json_of(const std::vector<Number>& numbers) {
  return json_array(numbers, [](Number number) { return str(number); });
}

std::string json_of(const std::vector<std::vector<std::string>>& lists) {
  return json_array(lists, [](const auto& list) { return json_of(list); });
}

std::string json_of(const ReplicaTimes& times) {
  return str(
      "{\"forward_ms\":", times.forward_ms,
      ",\"backward_ms\":", times.backward_ms,
      ",\"communication_ms\":", times.communication_ms,
      ",\"overlap_ms\":", times.overlap_ms, "}");
}

}  // namespace

std::string to_text(const ReplicateReport& report) {
  auto text = padded("bucket", 8) +
      columns("%14s %11s %10s\n", "bytes", "parameters", "reduce s");
  std::int64_t bytes = 0;
  std::size_t parameters = 0;
  double reduce_s = 0;
  for (std::size_t i = 0; i < report.buckets.size(); ++i) {
    // With one rank nothing is reduced.
    const double s =
        i < report.bucket_reduce_s.size() ? report.bucket_reduce_s[i] : 0.0;
    const auto& names = report.buckets[i];
    text += line_of(str(i), report.bucket_bytes[i], names.size(), s);
    bytes += report.bucket_bytes[i];
    parameters += names.size();
    reduce_s += s;
  }
  return text + line_of("all", bytes, parameters, reduce_s);
}

std::string to_json(const ReplicateReport& report) {
  return str(
      "{\"module\":", json_string(report.module),
      ",\"world_size\":", report.world_size, ",\"rank\":", report.rank,
      ",\"exchange\":", json_string(report.exchange),
      ",\"threads\":", report.threads, ",\"parameters\":", report.parameters,
      ",\"parameter_bytes\":", report.parameter_bytes,
      ",\"dtypes\":", json_of(report.dtypes),
      ",\"buckets\":", json_of(report.buckets),
      ",\"bucket_bytes\":", json_of(report.bucket_bytes),
      ",\"bucket_reduce_s\":", json_of(report.bucket_reduce_s),
      ",\"bucket_version\":", report.bucket_version,
      ",\"backwards\":", report.backwards,
      ",\"unused\":", json_of(report.unused),
      ",\"unused_bytes\":", report.unused_bytes,
      ",\"ready_order\":", json_of(report.ready_order),
      ",\"same_graph\":", json_bool(report.same_graph),
      ",\"joining\":", json_bool(report.joining),
      ",\"error\":", json_string(report.error),
      ",\"last\":", json_of(report.last), ",\"mean\":", json_of(report.mean),
      ",\"hook\":", json_string(report.hook),
      ",\"gradient_bytes\":", report.gradient_bytes,
      ",\"hook_bytes\":", report.hook_bytes, ",\"reduces\":", report.reduces,
      ",\"reduces_under_way_peak\":", report.reduces_under_way_peak,
      ",\"gradient_slot_bytes_peak\":", report.gradient_slot_bytes_peak, "}");
}

}  // namespace sherd
