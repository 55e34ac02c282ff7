// SPDX-License-Identifier: Apache-2.0
#include <sherd/world/flight_recorder.h>

#include <utility>
#include "base/flight_recorder.h"
#include "base/flight_signal.h"
#include "world/flight.h"
#include "world/world_impl.h"

namespace sherd {

std::shared_ptr<FlightRecorder> world::flight_recorder_of(const World& world) {
  return world.impl()->flight;
}

std::shared_ptr<FlightRecorder> world::make_flight_recorder(
    int rank, int world_size, const HostIdentity& host) {
  static const SteadyClock clock;
  return std::make_shared<FlightRecorder>(
      FlightOptions{
          .rank = rank,
          .world_size = world_size,
          .host = str(host.hostname, " ", host.boot_id, " ", host.fake)},
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
