// SPDX-License-Identifier: Apache-2.0
//
// How a world connects some of its ranks into a group.
#include "comm/world_impl.h"

#include <algorithm>
#include <numeric>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "base/check.h"
#include "base/clock.h"
#include "comm/store_wait.h"
#include "compat/gloo_backend.h"

namespace sherd {
namespace {

using std::chrono::milliseconds;

// The address this host would send from to reach `host`; empty when there is
// none. A connected UDP socket knows it and sends nothing.
std::string local_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (host.empty() || ::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) {
    return "";
  }
  std::string address;
  const int fd = ::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && ::connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[INET6_ADDRSTRLEN + 16] = "";
    auto* any = reinterpret_cast<sockaddr*>(&own);
    if (::getsockname(fd, any, &length) == 0 &&
        ::getnameinfo(
            any, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
      address = text;
    }
  }
  if (fd >= 0) {
    ::close(fd);
  }
  ::freeaddrinfo(found);
  return address;
}

void check_ranks(const std::vector<int>& ranks, int own, int size) {
  const bool ascending =
      std::is_sorted(ranks.begin(), ranks.end(), std::less_equal<>());
  const bool in_range =
      !ranks.empty() && ranks.front() >= 0 && ranks.back() < size;
  SHERD_CHECK(
      ascending && in_range, "[comm] expected ascending ranks from 0 to ",
      size - 1, " in a group");
  SHERD_CHECK(
      std::find(ranks.begin(), ranks.end(), own) != ranks.end(),
      "[comm] expected rank ", own, " to be in the group it connects");
}

}  // namespace

// Connecting blocks without looking at anything else, so every member first
// shows that it is about to connect; a missing one is waited for here, where
// losses are seen.
void World::Impl::await_members(
    const std::string& name, const std::vector<int>& ranks) {
  const auto key = [&name](int r) { return str("member/", name, "/", r); };
  const SteadyClock clock;
  const Instant end = clock.now() + options.deadline;
  store->set(key(rank), "1");
  for (const int r : ranks) {
    while (!comm::wait_for_key(*store, key(r), options.deadline)) {
      const auto loss = watch->first_lost(ranks);
      SHERD_CHECK_AS(
          kPeerLost, !loss, "[comm] rank ", loss->rank, " was lost: it ",
          loss->how, "; rank ", rank, " waited for group '", name,
          "' with rank ", r);
      SHERD_CHECK_AS(
          kDeadlineExceeded, clock.now() < end, "[comm] rank ", r,
          " did not join group '", name, "' within ", seconds(options.deadline),
          " s of rank ", rank);
    }
  }
}

c10::intrusive_ptr<c10d::Backend> World::Impl::connect(
    const std::string& name, const std::vector<int>& ranks) {
  const auto& own_host = records.at(static_cast<std::size_t>(rank)).host;
  const bool one_host = std::all_of(ranks.begin(), ranks.end(), [&](int r) {
    return comm::same_host(
        records.at(static_cast<std::size_t>(r)).host, own_host);
  });
  compat::GlooOptions gloo{
      .connect_deadline = std::min<milliseconds>(
          options.deadline, compat::GlooOptions().connect_deadline),
      .wait_deadline = options.deadline,
      .network_interface = options.network_interface};
  if (one_host) {
    gloo.address = "127.0.0.1";
  } else if (gloo.network_interface.empty()) {
    gloo.address = local_address_towards(master_addr);
  }
  const auto index = std::find(ranks.begin(), ranks.end(), rank);
  return compat::make_gloo_backend(
      c10::make_intrusive<c10d::PrefixStore>("group/" + name, store),
      static_cast<int>(index - ranks.begin()), static_cast<int>(ranks.size()),
      gloo);
}

std::unique_ptr<comm::Group> World::Impl::make_group(
    const std::string& name, const std::vector<int>& ranks) {
  SHERD_CHECK(!closed, "[comm] expected an open world, found it closed");
  check_ranks(ranks, rank, size);
  SHERD_CHECK(
      group_names.insert(name).second, "[comm] expected a new group name, ",
      "found '", name, "' a second time");
  if (ranks.size() == 1) {
    return make_group(ranks, nullptr);
  }
  try {
    await_members(name, ranks);
    return make_group(ranks, connect(name, ranks));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // Give a death, the usual reason, a moment to be seen.
    const auto loss = watch->wait_lost(milliseconds(300));
    throw Error(
        loss ? str("[comm] rank ", loss->rank, " was lost: it ", loss->how,
                   "; rank ", rank, " was connecting group '", name, "'")
             : str("[comm] rank ", rank, " could not connect group '", name,
                   "': ", comm::first_line_of(error)),
        loss ? ErrorCode::kPeerLost : ErrorCode::kUnavailable);
  }
}

std::unique_ptr<comm::Group> World::Impl::make_group(
    const std::vector<int>& ranks, c10::intrusive_ptr<c10d::Backend> backend) {
  check_ranks(ranks, rank, size);
  return std::make_unique<comm::Group>(
      comm::GroupOptions{
          .ranks = ranks, .own_rank = rank, .deadline = options.deadline},
      std::move(backend), *watch);
}

comm::Group& World::Impl::all_ranks() {
  SHERD_CHECK(!closed, "[comm] expected an open world, found it closed");
  if (barrier_group == nullptr) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    barrier_group = make_group("world", ranks);
  }
  return *barrier_group;
}

}  // namespace sherd
