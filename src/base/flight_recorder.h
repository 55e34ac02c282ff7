// SPDX-License-Identifier: Apache-2.0
//
// FlightRecorder keeps the last events of a rank's exchanges, and sums up what they say about each
// unit. It is always on, and writes a file for `sherd trace` when an exchange fails or on request.
// World owns the recorder of its rank; exchanges write into it through a FlightLog. Mirrors the
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

// The files contain them as text, see text_of().
enum class FlightEvent : std::uint8_t {
  kAsked,      // The engine asks for a unit.
  kStarted,    // The thread that gathers starts with it.
  kGathered,   // The unit is whole.
  kPosted,     // A unit's gradients are complete; its reduction may start.
  kReduced,    // This rank knows that their sum is complete.
  kRequested,  // This rank has come to a step of all ranks; with `sequence`.
  kAgreed,     // All ranks have come to it.
  kWaiting,    // The training thread starts to wait for other ranks.
  kResumed,
  kVisited,  // An operator uses the unit. Only in a profile.
  kBackwardEnded,
  kDeparted,  // The backward gathered other units than the plan says.
  kPublished,
  kFailed,
};

// What ranks do together. kForward and kBackward are the parts of a step to which a visit belongs.
enum class FlightStep : std::uint8_t {
  kNone,
  kUnshardInForward,
  kUnshardInBackward,
  kBeginStep,
  kAllReduce,
  kStartReductions,
  kEndBackward,
  kPublish,  // Its `sequence` is the generation.
  kForward,
  kBackward,
};

// Returns texts such as "gathered" and "unshard in forward".
std::string_view text_of(FlightEvent event);
std::string_view text_of(FlightStep step);

struct FlightRecord {
  std::int64_t time_ns = 0;    // By the monotonic clock of the host.
  std::uint64_t sequence = 0;  // Of a kRequested, kAgreed or kPublished.
  std::int64_t bytes = 0;
  std::int32_t unit = -1;  // -1: no particular unit.
  std::uint16_t group = 0;
  FlightEvent event = FlightEvent::kAsked;
  FlightStep step = FlightStep::kNone;
};
static_assert(sizeof(FlightRecord) == 32);

// Totals of one rank for one unit so far.
struct UnitTimes {
  std::int64_t gathers = 0;
  std::int64_t reduces = 0;
  Duration gathering{0};  // From kStarted to kGathered.
  Duration waited{0};     // How long the training thread waited for gathers.
  Duration reducing{0};   // From kPosted to kReduced.
};

struct FlightOptions {
  int rank = 0;
  int world_size = 1;
  std::string host{};  // Equal for ranks with the same monotonic clock.
  std::string run{};   // Equal for the ranks of a run, and for no other run.
  std::size_t records_max = 1000;
};

class FlightRecorder {
 public:
  // The clock must outlive it.
  FlightRecorder(FlightOptions options, const Clock& clock);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Registers an exchange between these world ranks and returns its number. Ranks that exchange
  // with each other give it the same name. If it is a part of another exchange, `whole`, its
  // gathers are also counted there.
  std::uint16_t add_group(
      std::string name,
      std::vector<int> ranks,
      std::optional<std::uint16_t> whole = std::nullopt);
  void name_units(std::uint16_t group, std::vector<std::string> names);

  // Sets the time of the record and keeps it.
  void record(FlightRecord record);
  // Totals by unit of the group.
  std::vector<UnitTimes> unit_times(std::uint16_t group) const;

  // Drops all records, and keeps up to `records_max` records from now on, until end_profile().
  void begin_profile(std::size_t records_max);
  void end_profile();
  // Whether visits are recorded, too.
  bool profiling() const { return profiling_.load(std::memory_order_relaxed); }

  // Sets the folder into which write() puts its file; empty: none.
  void set_folder(const std::string& folder);
  std::string folder() const;  // Empty: none.

  // Remembers why this rank failed, and writes the file. Only the first reason is kept. If the file
  // cannot be written, logs a warning.
  void fail(std::uint16_t group, const std::string& reason);
  // Writes FOLDER/rank-N.json atomically. The first time, a file that an earlier run has left there
  // for this rank gets the suffix .previous. Returns kOk if there is no folder.
  [[nodiscard]] Status write() const;
  [[nodiscard]] Status write_to(const std::string& folder) const;

  std::string to_json() const;

 private:
  struct Group {
    std::string name;
    std::vector<int> ranks;
    std::optional<std::uint16_t> whole{};
    std::vector<std::string> units{};
    std::vector<UnitTimes> times{};  // By unit, like the following lists.
    std::vector<std::int64_t> gather_began_ns{};
    std::vector<std::int64_t> reduce_began_ns{};
    std::int64_t wait_began_ns = 0;
  };
  static void add_up(Group& group, const FlightRecord& record);
  std::string path_in(const std::string& folder) const;
  void keep_previous(const std::string& folder) const;

  const FlightOptions options_;
  const Clock& clock_;
  mutable std::mutex write_mu_;  // Locked before mu_.
  // Guarded by write_mu_: where an earlier file has been renamed.
  mutable std::string kept_previous_in_;
  mutable std::mutex mu_;
  // Guarded by mu_:
  std::vector<Group> groups_;
  std::deque<FlightRecord> records_;  // From the oldest to the newest.
  std::size_t records_max_;
  std::uint64_t forgotten_ = 0;  // The number of dropped records.
  std::string folder_;
  std::string reason_;
  // Relaxed, paired with nothing: a visit that sees a change late is only left out.
  std::atomic<bool> profiling_{false};
};

// What an exchange writes into: one group of a recorder. A copy writes into the same group; a
// default-constructed log records nothing. Thread rule: any thread.
class FlightLog {
 public:
  FlightLog() = default;
  FlightLog(
      std::shared_ptr<FlightRecorder> recorder,
      std::string name,
      std::vector<int> ranks)
      : recorder_(std::move(recorder)),
        group_(recorder_->add_group(std::move(name), std::move(ranks))) {}

  // Returns the log of an exchange that gathers for this one.
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
