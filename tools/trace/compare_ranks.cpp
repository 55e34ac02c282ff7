// SPDX-License-Identifier: Apache-2.0
#include "trace/compare_ranks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include "format_text.h"

namespace sherd::tools {
namespace {

// How many ranks without a file are named; a damaged file may speak of very many.
constexpr int kMissingShown = 64;

// What a rank requested at one step, and when.
struct Request {
  std::string subject;
  bool in_backward = false;
  std::int64_t time_ns = 0;
};
using RequestsOfRank = std::map<std::uint64_t, Request>;  // Keyed by sequence.

// The requests of an exchange, by rank. Publishes have a sequence of their own.
struct Requests {
  std::string exchange;
  std::map<int, RequestsOfRank> by_rank;
  std::set<int> forgetful;  // Ranks whose file lacks their first events.
  // Ranks whose file says nothing about what they had not come to yet: they had not failed, and
  // others still went on after they had written it.
  std::set<int> wrote_early;
};

bool may_differ(FlightStep step) {
  return step == FlightStep::kUnshardInBackward ||
      step == FlightStep::kStartReductions || step == FlightStep::kEndBackward;
}

std::string text_of_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool last = i + 1 == ranks.size();
    text += i == 0 ? "" : last ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

bool is_one(const std::vector<int>& ranks) { return ranks.size() == 1; }

// When a rank last did something. A rank that fails, at a deadline for instance, does that without
// the others.
std::int64_t last_event_ns(std::span<const FlightFile> files) {
  std::int64_t last_ns = 0;
  for (const auto& file : files) {
    for (const auto& event : file.events) {
      if (event.event != FlightEvent::kFailed &&
          event.event != FlightEvent::kResumed) {
        last_ns = std::max(last_ns, event.time_ns);
      }
    }
  }
  return last_ns;
}

std::vector<Requests> requests_of(std::span<const FlightFile> files) {
  const auto last_ns = last_event_ns(files);
  std::map<std::pair<std::string, bool>, Requests> all;
  for (const auto& file : files) {
    const bool early = file.reason.empty() && file.monotonic_ns < last_ns;
    for (const auto& group : file.groups) {
      for (const bool publishes : {false, true}) {
        auto& requests = all[{group.name, publishes}];
        requests.by_rank[file.rank];
        if (file.forgotten > 0) {
          requests.forgetful.insert(file.rank);
        }
        if (early) {
          requests.wrote_early.insert(file.rank);
        }
      }
    }
    for (const auto& event : file.events) {
      if (event.event != FlightEvent::kRequested) {
        continue;
      }
      const auto& exchange = file.groups[event.group].name;
      const bool publishes = event.step == FlightStep::kPublish;
      all[{exchange, publishes}].by_rank[file.rank][event.sequence] = {
          .subject = subject_of(file, event),
          .in_backward = may_differ(event.step),
          .time_ns = event.time_ns};
    }
  }
  std::vector<Requests> list;
  for (auto& [key, requests] : all) {
    requests.exchange = key.first;
    list.push_back(std::move(requests));
  }
  return list;
}

// The ranks at one step, grouped by what they want.
struct Step {
  std::map<std::string, std::vector<int>> wants;
  std::vector<int> here;
  std::vector<int> not_yet;  // Ranks whose last request comes before it.
  bool in_backward = true;   // True if all of them are.
  std::int64_t time_ns = 0;
};

Step step_at(const Requests& requests, std::uint64_t sequence) {
  Step step;
  for (const auto& [rank, of_rank] : requests.by_rank) {
    const auto found = of_rank.find(sequence);
    if (found == of_rank.end()) {
      const bool not_yet = of_rank.empty() ? !requests.forgetful.contains(rank)
                                           : of_rank.rbegin()->first < sequence;
      if (not_yet && !requests.wrote_early.contains(rank)) {
        step.not_yet.push_back(rank);
      }
      continue;
    }
    const auto& request = found->second;
    step.time_ns = step.here.empty() ? request.time_ns
                                     : std::min(step.time_ns, request.time_ns);
    step.in_backward = step.in_backward && request.in_backward;
    step.here.push_back(rank);
    step.wants[request.subject].push_back(rank);
  }
  return step;
}

// Names small groups before large ones.
std::string text_of_wants(const Step& step) {
  std::vector<std::pair<std::vector<int>, std::string>> groups;
  for (const auto& [subject, ranks] : step.wants) {
    groups.emplace_back(ranks, subject);
  }
  std::stable_sort(
      groups.begin(), groups.end(), [](const auto& a, const auto& b) {
        return a.first.size() < b.first.size();
      });
  std::string text;
  for (const auto& [ranks, subject] : groups) {
    text += text.empty() ? "" : ", ";
    text += text_of_ranks(ranks);
    text += is_one(ranks) ? " wants to " : " want to ";
    text += subject;
  }
  return text;
}

std::optional<RankDifference> first_difference(const Requests& requests) {
  std::set<std::uint64_t> sequences;
  for (const auto& [rank, of_rank] : requests.by_rank) {
    for (const auto& [sequence, request] : of_rank) {
      sequences.insert(sequence);
    }
  }
  for (const auto sequence : sequences) {
    const auto step = step_at(requests, sequence);
    const auto where = "request " + std::to_string(sequence);
    if (step.wants.size() > 1 && !step.in_backward) {
      return RankDifference{
          step.time_ns, requests.exchange,
          "at " + where + " " + text_of_wants(step)};
    }
    if (!step.not_yet.empty()) {
      return RankDifference{
          step.time_ns, requests.exchange,
          text_of_ranks(step.not_yet) +
              (is_one(step.not_yet) ? " has" : " have") + " not come to " +
              where + ", where " + text_of_wants(step)};
    }
  }
  return std::nullopt;
}

// What the rank was doing when it wrote its file, or did last.
std::string last_of(const FlightFile& file) {
  if (file.events.empty()) {
    return "no event";
  }
  std::map<int, const FlightRecord*> waiting;  // Keyed by group.
  for (const auto& event : file.events) {
    if (event.event == FlightEvent::kWaiting) {
      waiting[event.group] = &event;
    } else if (event.event == FlightEvent::kResumed) {
      waiting.erase(event.group);
    }
  }
  const auto* last = &file.events.back();
  for (auto event = file.events.rbegin();
       event != file.events.rend() && last->event == FlightEvent::kFailed;
       ++event) {
    last = &*event;
  }
  const auto* shown = waiting.empty() ? last : waiting.begin()->second;
  const double ago_s = seconds(Duration(file.monotonic_ns - shown->time_ns));
  const auto subject = subject_of(file, *shown);
  return waiting.empty()
      ? std::string(text_of(shown->event)) + (subject.empty() ? "" : " ") +
          subject + format(", %.3f s before it wrote this", ago_s)
      : "waits to " + subject + format(", for %.3f s", ago_s);
}

}  // namespace

std::vector<RankDifference> compare_ranks(std::span<const FlightFile> files) {
  std::vector<RankDifference> differences;
  for (const auto& requests : requests_of(files)) {
    if (auto difference = first_difference(requests)) {
      differences.push_back(*std::move(difference));
    }
  }
  std::stable_sort(
      differences.begin(), differences.end(),
      [](const auto& a, const auto& b) { return a.time_ns < b.time_ns; });
  return differences;
}

std::string comparison_text(std::span<const FlightFile> files) {
  std::string text;
  std::set<int> with_file;
  for (const auto& file : files) {
    with_file.insert(file.rank);
  }
  int missing = 0;
  for (int rank = 0; rank < files.front().world_size; ++rank) {
    if (!with_file.contains(rank) && ++missing <= kMissingShown) {
      text += "rank " + std::to_string(rank) +
          " has left no file: it was killed, or ended without a failure\n";
    }
  }
  if (missing > kMissingShown) {
    text +=
        "so have " + std::to_string(missing - kMissingShown) + " ranks more\n";
  }
  const auto differences = compare_ranks(files);
  for (const auto& difference : differences) {
    text += difference.exchange + ": " + difference.text + "\n";
  }
  if (differences.empty()) {
    text +=
        "the ranks that have a file agree in every request that all of them "
        "can have come to\n";
  }
  text += "\n";
  for (const auto& file : files) {
    text += "rank " + std::to_string(file.rank) + ": " + last_of(file) + "\n";
    if (!file.reason.empty()) {
      text += "    failed: " + file.reason + "\n";
    }
  }
  return text;
}

}  // namespace sherd::tools
