// SPDX-License-Identifier: Apache-2.0
#include <sherd/world/flight_recorder.h>

#include "base/flight_recorder.h"
#include "base/flight_signal.h"
#include "world/flight.h"
#include "world/world_impl.h"

namespace sherd {

std::shared_ptr<FlightRecorder> world::flight_recorder_of(const World& world) {
  return world.impl()->flight;
}

std::shared_ptr<FlightRecorder> world::make_flight_recorder(
    int rank, const std::vector<RankRecord>& records) {
  static const SteadyClock clock;
  const HostIdentity& host = records.at(static_cast<std::size_t>(rank)).host;
  const RankRecord& first = records.front();
  return std::make_shared<FlightRecorder>(
      FlightOptions{
          .rank = rank,
          .world_size = static_cast<int>(records.size()),
          .host = str(host.hostname, " ", host.boot_id, " ", host.fake),
          // Every rank knows this of rank 0, whose process no other run has.
          .run =
              str(first.host.hostname, " ", first.host.boot_id, " ", first.pid,
                  " ", first.start_ticks)},
      clock);
}

void set_flight_folder(const World& world, const std::string& folder) {
  auto& impl = *world.impl();
  impl.flight->set_folder(folder);
  if (impl.flight_signal == nullptr) {
    impl.flight_signal = std::make_unique<FlightSignal>(impl.flight);
  }
}

Profile::Profile(const World& world, const ProfileOptions& options)
    : recorder_(world.impl()->flight) {
  recorder_->begin_profile(options.events_max);
}

Profile::Profile(Profile&&) noexcept = default;

Profile::~Profile() {
  if (recorder_) {
    recorder_->end_profile();
  }
}

void Profile::write(const std::string& folder) const {
  recorder_->write_to(folder).throw_if_failed();
}

}  // namespace sherd
