// SPDX-License-Identifier: Apache-2.0
//
// What the exchanges of this rank do is always recorded: gathers, reductions, steps of all ranks,
// waits. Here a program says where the record goes when something fails, and takes profiles. Mirrors
// the flight recorder of PyTorch's NCCL backend. Concepts: docs/guide/watching.md.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <sherd/world/world.h>

namespace sherd {

class FlightRecorder;

// From now on this rank writes the last 1,000 events to FOLDER/rank-N.json when an exchange fails,
// when an exception ends one, and at SIGUSR2, which no longer ends the process. The folder is made
// when it is needed, and a file that an earlier run has left there for this rank gets the ending
// .previous. `sherd trace flight FOLDER` compares the ranks. World::from_environment() and from_store()
// call it where SHERD_FLIGHT_DIR is set. A subset of a world has a folder of its own in the world's:
// FOLDER/subset/RANKS/N, where N counts subsets of the same ranks. Thread rule: the thread that made
// the world.
void set_flight_folder(const World& world, const std::string& folder);

struct ProfileOptions {
  // Older events are forgotten. 32 bytes each.
  std::size_t events_max = std::size_t{1} << 18;
};

// While it lives, all events of this rank are kept, and which units its operators visit. One at a
// time. Thread rule: one thread.
class Profile {
 public:
  explicit Profile(const World& world, const ProfileOptions& options = {});
  Profile(Profile&&) noexcept;
  Profile& operator=(Profile&&) = delete;
  ~Profile();

  // Writes what there is so far to FOLDER/rank-N.json; `sherd trace merge FOLDER -o FILE` makes one
  // trace of all ranks. Throws Error where that cannot be written.
  void write(const std::string& folder) const;

 private:
  std::shared_ptr<FlightRecorder> recorder_;
};

}  // namespace sherd
