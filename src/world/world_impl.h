// SPDX-License-Identifier: Apache-2.0
//
// The state behind the handle World, for the files of src/world. Thread rule: one thread, except for
// the watch and the exit status page, which any thread may use.
#pragma once

#include <chrono>
#include <map>
#include <memory>
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
  std::string master_addr;  // Empty when unknown.

  c10::intrusive_ptr<c10d::Store> store;   // Null with one rank.
  std::vector<world::RankRecord> records;  // By rank.
  world::ExitStatusPage board;
  std::unique_ptr<world::PeerWatch> watch;
  std::shared_ptr<FlightRecorder> flight;       // Exchanges keep it, too.
  std::unique_ptr<FlightSignal> flight_signal;  // Once there is a folder.
  // Transports that are gone here, while peers may still be receiving from them.
  struct Retired {
    std::string name;
    std::unique_ptr<world::C10dTransport> group;
  };
  std::vector<Retired> retired;
  std::unique_ptr<world::C10dTransport>
      barrier_group;  // All ranks; made when needed.
  // Those that several transports share: by role, deadline and ranks.
  struct SharedConnections {
    std::shared_ptr<world::C10dTransport> group;
    int channels = 0;  // Taken so far.
  };
  std::map<std::string, SharedConnections> shared;
  std::map<c10::DeviceType, world::MakeDeviceBackend> device_backends;
  // Gloo devices of the connections within a host, and of the others; made when needed.
  std::shared_ptr<compat::GlooDevice> device_of_host;
  std::shared_ptr<compat::GlooDevice> device_between_hosts;
  std::set<std::string> group_names;   // Used up: keys stay in the store.
  int made = 0;                        // Handed out by next_number().
  std::map<std::string, int> subsets;  // By ranks: how many subset() has made.
  bool closed = false;
  // A launcher's store, which outlives this world; else null.
  c10::intrusive_ptr<c10d::Store> job_store;

  ~Impl();

  // Collective over `ranks`: connects them; `deadline` is that of waits afterwards.
  // Throws Error.
  std::unique_ptr<world::C10dTransport> make_group(
      const std::string& name,
      const std::vector<int>& ranks,
      std::chrono::milliseconds deadline);
  world::C10dTransport& all_ranks();

  // Tells ranks that connect a group with this one that it never comes.
  void announce_closing();
  // Lets the store go, which ends it if this process keeps it.
  void end_store();

 private:
  void check_none_lost(
      const std::string& name,
      const std::vector<int>& ranks,
      int missing,
      Instant end) const;
  void check_will_join(
      const std::string& name, int missing, const std::string& key) const;
  std::vector<std::string> await_members(
      const std::string& stage,
      const std::string& name,
      const std::vector<int>& ranks,
      const std::string& note);
  std::string retired_names() const;
  void free_retired_groups(
      const std::vector<int>& ranks, const std::vector<std::string>& notes);
  c10::intrusive_ptr<c10d::Backend> connect(
      const std::string& name, const std::vector<int>& ranks);
};

// Throws unless `ranks` are ascending, those of a world of `size`, and `own` is among them.
void check_group_ranks(const std::vector<int>& ranks, int own, int size);

namespace world {

// World::from_store() as a host of the caller's invention, for tests.
World make_world(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    const WorldOptions& options,
    const HostIdentity& host,
    const std::string& master_addr);

}  // namespace world
}  // namespace sherd
