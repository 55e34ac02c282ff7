// SPDX-License-Identifier: Apache-2.0
//
// The state behind the handle World, for the files in src/world. Thread rule: one thread, except
// for the watch and the exit status page, which any thread may use.
#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include <c10/util/intrusive_ptr.h>
#include <sherd/world/world.h>
#include "base/clock.h"
#include "base/flight_recorder.h"
#include "base/flight_signal.h"
#include "compat/gloo_backend.h"
#include "world/c10d_transport.h"
#include "world/device_backend.h"
#include "world/exit_status_page.h"
#include "world/peer_watch.h"
#include "world/rank_record.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace sherd {

struct World::Impl {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  WorldOptions options;
  std::string master_addr;  // Empty if unknown.

  c10::intrusive_ptr<c10d::Store> store;   // Null if there is only one rank.
  std::vector<world::RankRecord> records;  // Indexed by rank.
  world::ExitStatusPage board;
  std::unique_ptr<world::PeerWatch> watch;
  std::shared_ptr<FlightRecorder> flight;       // Exchanges keep it, too.
  std::unique_ptr<FlightSignal> flight_signal;  // Set once there is a folder.
  // Transports that were released here, while peers may still receive from them.
  struct Retired {
    std::string name;
    std::unique_ptr<world::C10dTransport> group;
  };
  std::vector<Retired> retired;
  // Connects all ranks; created when needed.
  std::unique_ptr<world::C10dTransport> barrier_group;
  std::exception_ptr barrier_failure;  // Why it could not be created.
  // Connections that several transports share, keyed by role, deadline and ranks. When a group has
  // no channel left, the next transport connects another one. All stay until the world closes,
  // because no rank knows whether others still use the channels of one.
  struct SharedConnections {
    std::vector<std::shared_ptr<world::C10dTransport>> groups;
    int channels = 0;  // How many are taken so far, of all groups.
  };
  std::map<std::string, SharedConnections> shared;
  std::map<c10::DeviceType, world::MakeDeviceBackend> device_backends;
  // The Gloo devices for connections within a host, and for the others; created when needed.
  std::shared_ptr<compat::GlooDevice> device_of_host;
  std::shared_ptr<compat::GlooDevice> device_between_hosts;
  // Used up, since their keys stay in the store.
  std::set<std::string> group_names;
  int made = 0;  // How many numbers next_number() has handed out.
  // How often subset() was called for these ranks.
  std::map<std::string, int> subsets;
  bool closed = false;
  bool agent_store = false;  // `store` is a round of a launcher's (rounds.h).

  ~Impl();

  // Collective over `ranks`: connects them. `deadline` applies to later waits. Throws Error.
  std::unique_ptr<world::C10dTransport> make_group(
      const std::string& name,
      const std::vector<int>& ranks,
      std::chrono::milliseconds deadline);
  world::C10dTransport& all_ranks();

  // Tells ranks that are connecting a group with this one that it will never join.
  void announce_closing();
  // Tells ranks of other hosts the same if the world was not closed.
  void tell_end_without_close() noexcept;
  // Releases the store, which ends it if this process keeps it.
  void end_store();
  // Waits for the loss that is the usual reason why the store or a connection fails. Nothing if
  // none appears.
  std::optional<world::PeerLoss> await_loss() const;

 private:
  void check_none_lost(
      const std::string& name,
      const std::vector<int>& ranks,
      int missing,
      Instant end) const;
  std::optional<world::PeerLoss> why_it_stays_away(
      const std::string& name, int missing) const;
  void check_will_join(
      const std::string& name, int missing, const std::string& key) const;
  std::vector<std::string> await_members(
      const std::string& stage,
      const std::string& name,
      const std::vector<int>& ranks,
      const std::string& note);
  // Whether this rank watches the processes of all others.
  bool all_on_this_host() const;
  // Sets the key if there are others, for up to a second.
  void tell_other_hosts(
      const std::string& key, const std::string& text) noexcept;
  std::string retired_names() const;
  void free_retired_groups(
      const std::vector<int>& ranks, const std::vector<std::string>& notes);
  c10::intrusive_ptr<c10d::Backend> connect(
      const std::string& name, const std::vector<int>& ranks);
};

// Throws unless `ranks` ascend, belong to a world of `size`, and include `own`.
void check_group_ranks(const std::vector<int>& ranks, int own, int size);

namespace world {

// World::from_store() with a made-up host, for tests.
World make_world(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    const WorldOptions& options,
    const HostIdentity& host,
    const std::string& master_addr);

}  // namespace world
}  // namespace sherd
