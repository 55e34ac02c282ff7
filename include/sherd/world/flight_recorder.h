// SPDX-License-Identifier: Apache-2.0
//
// Each rank always records what its exchanges do: gathers, reductions, steps of all ranks, waits.
// Here a program says where the record goes when something fails, and takes profiles. Mirrors the
// flight recorder of PyTorch's NCCL backend. Concepts: docs/guide/watching.md.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <sherd/base/error.h>
#include <sherd/world/world.h>

namespace sherd {

class FlightRecorder;

// From now on this rank writes its last 1,000 events to FOLDER/rank-N.json when an exchange fails,
// when an exception ends one, and on SIGUSR2, which no longer ends the process. The folder is made
// when it is needed. A file that an earlier run has left there for this rank then gets the suffix
// .previous. `sherd trace flight FOLDER` compares the ranks of the run that has written last.
// World::from_environment() and from_store() call this function if SHERD_FLIGHT_DIR is set. A
// subset of a world uses a folder within the world's: FOLDER/subset/RANKS/N, where N counts the
// subsets with the same ranks. Thread rule: the thread that made the world.
void set_flight_folder(const World& world, const std::string& folder);

struct ProfileOptions {
  // If there are more, the oldest are dropped. An event takes 32 bytes.
  std::size_t events_max = std::size_t{1} << 18;
};

// While it lives, all events of this rank are kept, and also which units its operators visit. Only
// one may exist at a time. Thread rule: one thread.
class Profile {
 public:
  explicit Profile(const World& world, const ProfileOptions& options = {});
  Profile(Profile&&) noexcept;
  Profile& operator=(Profile&&) = delete;
  ~Profile();

  // Writes the events so far to FOLDER/rank-N.json; `sherd trace merge FOLDER -o FILE` makes one
  // trace of all ranks. Throws Error if the file cannot be written.
  void write(const std::string& folder) const;

 private:
  HandleState<std::shared_ptr<FlightRecorder>, "[world] Profile"> recorder_;
};

}  // namespace sherd
