// SPDX-License-Identifier: Apache-2.0
//
// FlightRecorder remembers what the exchanges of a rank did last, and adds up what that says about
// each unit. It is always on, and writes a file for `sherd trace` when an exchange fails or somebody
// asks. World owns the recorder of its rank; exchanges write into it through a FlightLog. Mirrors the
// flight recorder of PyTorch's NCCL backend. Thread rule: any thread. docs/design/recorder.md
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "base/status.h"

namespace sherd {

// In the files they are text: text_of().
enum class FlightEvent : std::uint8_t {
  kAsked,      // The engine wants a unit whole.
  kStarted,    // The thread that gathers begins with it.
  kGathered,   // The unit is whole.
  kPosted,     // A unit's gradients are complete; its reduction may start.
  kReduced,    // Their sum is known to be made here.
  kRequested,  // This rank has come to a step of all ranks; with `sequence`.
  kAgreed,     // All ranks have come to it.
  kWaiting,    // The thread that trains begins to wait for other ranks.
  kResumed,
  kVisited,  // An operator uses the unit; in a profile only.
  kBackwardEnded,
  kDeparted,  // The backward gathered other units than the plan says.
  kPublished,
  kFailed,
};

// What ranks do together. kForward and kBackward are parts of a step that a visit is in.
enum class FlightStep : std::uint8_t {
  kNone,
  kUnshardInForward,
  kUnshardInBackward,
  kBeginStep,
  kAllReduce,
  kEndBackward,
  kPublish,  // Its sequence is the generation.
  kForward,
  kBackward,
};

// "gathered", "unshard in forward".
std::string_view text_of(FlightEvent event);
std::string_view text_of(FlightStep step);

struct FlightRecord {
  std::int64_t time_ns = 0;    // By the monotonic clock of the host.
  std::uint64_t sequence = 0;  // Of a kRequested, kAgreed or kPublished.
  std::int64_t bytes = 0;
  std::int32_t unit = -1;  // -1: none in particular.
  std::uint16_t group = 0;
  FlightEvent event = FlightEvent::kAsked;
  FlightStep step = FlightStep::kNone;
};
static_assert(sizeof(FlightRecord) == 32);

// What one rank has seen of one unit so far.
struct UnitTimes {
  std::int64_t gathers = 0;
  std::int64_t reduces = 0;
  Duration gathering{0};  // From kStarted to kGathered.
  Duration waited{0};     // The thread that trains, for gathers.
  Duration reducing{0};   // From kPosted to kReduced.
};

struct FlightOptions {
  int rank = 0;
  int world_size = 1;
  std::string host{};  // Equal where the monotonic clock is the same.
  std::size_t records_max = 1000;
};

class FlightRecorder {
 public:
  // The clock must outlive it.
  FlightRecorder(FlightOptions options, const Clock& clock);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Returns the number of a new exchange between these world ranks. Those that exchange with each
  // other give it the same name.
  // Gathers of one that is a part of another, `whole`, are added up for that, too.
  std::uint16_t add_group(
      std::string name,
      std::vector<int> ranks,
      std::optional<std::uint16_t> whole = std::nullopt);
  void name_units(std::uint16_t group, std::vector<std::string> names);

  // Sets the time of the record and keeps it.
  void record(FlightRecord record);
  // By unit of the group.
  std::vector<UnitTimes> unit_times(std::uint16_t group) const;

  // Forgets what there is, and keeps up to `records_max` records from now on, until end_profile().
  void begin_profile(std::size_t records_max);
  void end_profile();
  // Whether visits are recorded, too.
  bool profiling() const { return profiling_.load(std::memory_order_relaxed); }

  // Where write() puts its file; empty: nowhere. Removes what an earlier run has left there under
  // this rank's name.
  void set_folder(const std::string& folder);
  std::string folder() const;  // Empty: none.

  // Remembers why this rank failed, and writes the file. The first reason stays. A file that cannot
  // be written is a warning.
  void fail(std::uint16_t group, const std::string& reason);
  // Writes FOLDER/rank-N.json, in one move. kOk without a folder.
  [[nodiscard]] Status write() const;
  [[nodiscard]] Status write_to(const std::string& folder) const;

  std::string to_json() const;

 private:
  struct Group {
    std::string name;
    std::vector<int> ranks;
    std::optional<std::uint16_t> whole{};
    std::vector<std::string> units{};
    std::vector<UnitTimes> times{};  // By unit, as the following.
    std::vector<std::int64_t> gather_began_ns{};
    std::vector<std::int64_t> reduce_began_ns{};
    std::int64_t wait_began_ns = 0;
  };
  static void add_up(Group& group, const FlightRecord& record);
  std::string path_in(const std::string& folder) const;

  const FlightOptions options_;
  const Clock& clock_;
  mutable std::mutex write_mu_;  // Before mu_.
  mutable std::mutex mu_;
  // Guarded by mu_:
  std::vector<Group> groups_;
  std::deque<FlightRecord> records_;  // The oldest first.
  std::size_t records_max_;
  std::uint64_t forgotten_ = 0;  // Older ones.
  std::string folder_;
  std::string reason_;
  // Alone: a visit that sees a change late is only left out.
  std::atomic<bool> profiling_{false};
};

// What an exchange writes into: one group of a recorder. A copy stands for the same group; one made
// by default records nothing. Thread rule: any thread.
class FlightLog {
 public:
  FlightLog() = default;
  FlightLog(
      std::shared_ptr<FlightRecorder> recorder,
      std::string name,
      std::vector<int> ranks)
      : recorder_(std::move(recorder)),
        group_(recorder_->add_group(std::move(name), std::move(ranks))) {}

  // That of an exchange which gathers for this one.
  FlightLog part(std::string name, std::vector<int> ranks) const {
    FlightLog log;
    log.recorder_ = recorder_;
    log.group_ =
        recorder_->add_group(std::move(name), std::move(ranks), group_);
    return log;
  }

  void name_units(std::vector<std::string> names) const {
    if (recorder_) {
      recorder_->name_units(group_, std::move(names));
    }
  }
  void record(FlightRecord record) const {
    if (recorder_) {
      record.group = group_;
      recorder_->record(record);
    }
  }
  void fail(const std::string& reason) const {
    if (recorder_) {
      recorder_->fail(group_, reason);
    }
  }
  std::vector<UnitTimes> unit_times() const {
    return recorder_ ? recorder_->unit_times(group_) : std::vector<UnitTimes>();
  }
  bool profiling() const { return recorder_ && recorder_->profiling(); }

 private:
  std::shared_ptr<FlightRecorder> recorder_;
  std::uint16_t group_ = 0;
};

}  // namespace sherd
