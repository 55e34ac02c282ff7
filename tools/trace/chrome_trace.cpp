// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome_trace.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include "base/printable.h"
#include "format_text.h"

namespace sherd::tools {
namespace {

constexpr std::array<const char*, 5> kLaneNames = {
    "compute", "unshard", "reduce", "optimizer", "wait"};
// The distance between the numbers of two lanes.
constexpr int kLanesApart = 1000;

using Lane = TraceSpan::Lane;

// Takes the events of one rank in turn.
class SpanMaker {
 public:
  explicit SpanMaker(const FlightFile& file) : file_(file) {}

  void take(const FlightRecord& event) {
    switch (event.event) {
      case FlightEvent::kStarted:
        begin(Lane::kUnshard, event);
        break;
      case FlightEvent::kGathered:
        end(Lane::kUnshard, event);
        break;
      case FlightEvent::kPosted:
        begin(Lane::kReduce, event);
        break;
      case FlightEvent::kReduced:
        end(Lane::kReduce, event);
        break;
      case FlightEvent::kAsked:
        optimizing_.reset();  // It was another micro-batch.
        asked_bytes_[{event.group, event.unit}] = event.bytes;
        break;
      case FlightEvent::kVisited:
        optimizing_.reset();
        stop_computing(event.time_ns);
        computing_ = subject_of(file_, event);
        computes_since_ = event.time_ns;
        break;
      case FlightEvent::kWaiting:
        stop_computing(event.time_ns);
        waiting_[event.group] = event.time_ns;
        if (event.step == FlightStep::kPublish) {
          stop_optimizing(event.time_ns);
        }
        break;
      case FlightEvent::kResumed:
        resume(event);
        break;
      case FlightEvent::kBackwardEnded:
        stop_computing(event.time_ns);
        computing_.clear();
        optimizing_ = event.time_ns;
        break;
      case FlightEvent::kPublished:
        stop_optimizing(event.time_ns);
        // It belongs to another one, unless a visit follows.
        optimizing_ = event.time_ns;
        stop_computing(event.time_ns);
        computing_.clear();
        break;
      default:
        break;
    }
  }

  std::vector<TraceSpan> spans() && { return std::move(spans_); }

 private:
  using Key = std::pair<int, int>;  // Group and unit.

  void begin(Lane lane, const FlightRecord& event) {
    open_[static_cast<std::size_t>(lane)][{event.group, event.unit}] = event;
  }
  void end(Lane lane, const FlightRecord& event) {
    auto& open = open_[static_cast<std::size_t>(lane)];
    const auto found = open.find({event.group, event.unit});
    if (found == open.end()) {
      return;  // It began before the first recorded event.
    }
    const auto asked = asked_bytes_.find(found->first);
    const bool gathers = lane == Lane::kUnshard && asked != asked_bytes_.end();
    const auto bytes = gathers ? asked->second : found->second.bytes;
    add(lane, subject_of(file_, found->second), found->second.time_ns,
        event.time_ns, bytes);
    open.erase(found);
  }

  void resume(const FlightRecord& event) {
    const auto began = waiting_.find(event.group);
    if (began != waiting_.end()) {
      add(Lane::kWait, subject_of(file_, event), began->second, event.time_ns);
      waiting_.erase(began);
    }
    computes_since_ = event.time_ns;
  }

  void stop_computing(std::int64_t now_ns) {
    if (!computing_.empty() && computes_since_) {
      add(Lane::kCompute, computing_, *computes_since_, now_ns);
    }
    computes_since_.reset();
  }
  void stop_optimizing(std::int64_t now_ns) {
    if (optimizing_) {
      add(Lane::kOptimizer, "optimizer", *optimizing_, now_ns);
    }
    optimizing_.reset();
  }

  void add(
      Lane lane,
      std::string name,
      std::int64_t begin_ns,
      std::int64_t end_ns,
      std::int64_t bytes = 0) {
    spans_.push_back(
        {.lane = lane,
         .name = std::move(name),
         .begin_ns = begin_ns,
         .end_ns = end_ns,
         .bytes = bytes});
  }

  const FlightFile& file_;
  std::array<std::map<Key, FlightRecord>, kLaneNames.size()> open_;
  std::map<Key, std::int64_t> asked_bytes_;
  std::map<int, std::int64_t> waiting_;  // By group: when the wait began.
  std::string computing_;                // Empty if nothing is known.
  std::optional<std::int64_t> computes_since_;
  std::optional<std::int64_t> optimizing_;
  std::vector<TraceSpan> spans_;
};

// Writes the events in Chrome's format.
class TraceWriter {
 public:
  explicit TraceWriter(std::int64_t origin_ns) : origin_ns_(origin_ns) {}

  void name_process(int rank, const std::string& name) {
    add(format("\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\"", rank) +
        ",\"args\":{\"name\":" + json_string(name) + "}");
  }
  void name_lane(int rank, int number, const std::string& name) {
    const auto where =
        format("\"ph\":\"M\",\"pid\":%d,\"tid\":%d", rank, number);
    add(where + ",\"name\":\"thread_name\",\"args\":{\"name\":" +
        json_string(name) + "}");
    add(where +
        format(
            ",\"name\":\"thread_sort_index\",\"args\":"
            "{\"sort_index\":%d}",
            number));
  }
  void add_span(int rank, int lane, const TraceSpan& span) {
    add(format(
            "\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", rank,
            lane, microseconds(span.begin_ns),
            static_cast<double>(span.end_ns - span.begin_ns) * 1e-3) +
        ",\"name\":" + json_string(span.name) +
        format(
            ",\"args\":{\"bytes\":%lld}", static_cast<long long>(span.bytes)));
  }
  void add_instant(
      int rank, const FlightRecord& event, const std::string& why) {
    add(format(
            "\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":0,\"ts\":%.3f", rank,
            microseconds(event.time_ns)) +
        ",\"name\":" + json_string(text_of(event.event)) +
        ",\"args\":{\"reason\":" + json_string(why) + "}");
  }

  std::string text() const {
    return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[" + events_ + "\n]}\n";
  }

 private:
  double microseconds(std::int64_t time_ns) const {
    return static_cast<double>(time_ns - origin_ns_) * 1e-3;
  }
  void add(const std::string& members) {
    events_ += events_.empty() ? "\n{" : ",\n{";
    events_ += members;
    events_ += '}';
  }

  const std::int64_t origin_ns_;
  std::string events_;
};

std::int64_t first_time_ns(std::span<const FlightFile> files) {
  auto first = std::numeric_limits<std::int64_t>::max();
  for (const auto& file : files) {
    for (const auto& event : file.events) {
      first = std::min(first, event.time_ns);
    }
  }
  return first;
}

// Puts each span into the first free lane of its kind.
void write_spans(int rank, std::vector<TraceSpan> spans, TraceWriter& writer) {
  std::stable_sort(
      spans.begin(), spans.end(),
      [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  std::array<std::vector<std::int64_t>, kLaneNames.size()> free_from;
  for (auto& lanes : free_from) {
    lanes.push_back(0);  // There is a lane even if nothing is shown.
  }
  for (const auto& span : spans) {
    const auto kind = static_cast<std::size_t>(span.lane);
    auto& lanes = free_from[kind];
    const auto place = std::find_if(
        lanes.begin(), lanes.end(),
        [&](std::int64_t from_ns) { return from_ns <= span.begin_ns; });
    const auto number = static_cast<int>(place - lanes.begin());
    if (place == lanes.end()) {
      lanes.push_back(0);
    }
    lanes[static_cast<std::size_t>(number)] = span.end_ns;
    writer.add_span(rank, static_cast<int>(kind) * kLanesApart + number, span);
  }
  for (std::size_t kind = 0; kind < kLaneNames.size(); ++kind) {
    for (std::size_t i = 0; i < free_from[kind].size(); ++i) {
      writer.name_lane(
          rank, static_cast<int>(kind) * kLanesApart + static_cast<int>(i),
          kLaneNames[kind] +
              (i == 0 ? std::string()
                      : std::string(" ").append(std::to_string(i + 1))));
    }
  }
}

}  // namespace

std::vector<TraceSpan> trace_spans(const FlightFile& file) {
  SpanMaker maker(file);
  for (const auto& event : file.events) {
    maker.take(event);
  }
  return std::move(maker).spans();
}

std::string chrome_trace(std::span<const FlightFile> files) {
  TraceWriter writer(first_time_ns(files));
  for (const auto& file : files) {
    writer.name_process(
        file.rank,
        "rank " + std::to_string(file.rank) + " on " +
            file.host.substr(0, file.host.find(' ')));
    write_spans(file.rank, trace_spans(file), writer);
    for (const auto& event : file.events) {
      if (event.event == FlightEvent::kFailed ||
          event.event == FlightEvent::kDeparted) {
        writer.add_instant(file.rank, event, file.reason);
      }
    }
  }
  return writer.text();
}

}  // namespace sherd::tools
