// SPDX-License-Identifier: Apache-2.0
#include "net/connection.h"

#include <utility>
#include "net/connection_core.h"

namespace sherd::net {

Connection::Connection(std::shared_ptr<ConnectionCore> core)
    : core_(std::move(core)) {}

Connection::~Connection() { core_->abandon(); }

void Connection::start(ConnectionHandlers handlers) {
  core_->start(std::move(handlers));
}

void Connection::send(std::uint16_t type, std::string_view payload) {
  core_->send(type, payload);
}

void Connection::close(Status why) { core_->close(std::move(why)); }
void Connection::finish(Status why) { core_->finish(std::move(why)); }
bool Connection::open() const { return core_->open(); }
const std::string& Connection::peer() const { return core_->peer(); }
Instant Connection::last_received() const { return core_->last_received(); }
std::size_t Connection::unsent_bytes() const { return core_->unsent_bytes(); }

}  // namespace sherd::net
