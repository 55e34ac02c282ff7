// SPDX-License-Identifier: Apache-2.0
#include "support/ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstdio>
#include <exception>
#include <fstream>
#include <random>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "base/check.h"
#include "base/rank_environment.h"
#include "world/world_impl.h"

namespace sherd::test {
namespace {

struct Listener {
  int fd = -1;
  int port = 0;
};

// At any free port if `port` is 0. Without a descriptor if that is not possible.
Listener listen_on_loopback(int port = 0) {
  Listener listener;
  listener.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(listener.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.fd, any, length) != 0 ||
      ::listen(listener.fd, 128) != 0 ||
      ::getsockname(listener.fd, any, &length) != 0) {
    ::close(listener.fd);
    return {};
  }
  listener.port = ntohs(address.sin_port);
  return listener;
}

c10::intrusive_ptr<c10d::Store> store_of(const Listener& listener, int rank) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(listener.port);
  options.isServer = rank == 0;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(30);
  if (rank == 0) {
    options.masterListenFd = listener.fd;
  } else {
    ::close(listener.fd);  // Otherwise the port outlives rank 0.
  }
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

world::HostIdentity host_of(int rank, int ranks, const RankOptions& options) {
  auto host = world::HostIdentity::of_this_process();
  const auto all_tests = process_environment()("SHERD_TEST_HOSTS");
  const auto& hosts = options.hosts;
  if (hosts.empty() && all_tests) {
    host.fake = str(rank * std::stoi(*all_tests) / ranks);
  }
  int end = 0;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    end += hosts[h];
    if (rank < end) {
      host.fake = str(h);
      host.pid_namespace += options.blind_hosts ? host.fake : "";
      break;
    }
  }
  return host;
}

int failed_parts() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  int failed = 0;
  for (int i = 0; test != nullptr && i < test->result()->total_part_count();
       ++i) {
    failed += test->result()->GetTestPartResult(i).failed() ? 1 : 0;
  }
  return failed;
}

}  // namespace

WorldOptions test_world_options() {
  constexpr std::chrono::seconds kDeadline(20);
  return {.deadline = kDeadline, .rendezvous_deadline = kDeadline};
}

std::chrono::milliseconds RankReport::after_strike(int rank) const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      (*this)[rank].ended_at - struck_at);
}

RankReport run_processes(
    int count,
    const std::function<void(int index, Rank&)>& body,
    const RankOptions& options) {
  ChildrenReport report = run_children(
      {.count = count, .timeout = options.timeout, .strikes = options.strikes},
      [&body](int index, ChildLink& link) {
        at::set_num_threads(1);
        const int failed_before = failed_parts();
        try {
          body(index, link);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "exception: %s\n", error.what());
          return 3;
        }
        return failed_parts() > failed_before ? 1 : 0;
      });
  return {.ranks = std::move(report.children), .struck_at = report.struck_at};
}

RankReport run_ranks(
    int world_size,
    const std::function<void(World, Rank&)>& body,
    const RankOptions& options) {
  const Listener listener = listen_on_loopback();
  SHERD_CHECK(
      listener.fd >= 0, "[test] expected a free port on the loopback address");
  RankReport report = run_processes(
      world_size,
      [&](int rank, Rank& self) {
        World world = world::make_world(
            store_of(listener, rank), rank, world_size, options.world,
            host_of(rank, world_size, options), "127.0.0.1");
        body(world, self);
        if (options.close_world) {
          world.close();
        }
      },
      options);
  ::close(listener.fd);
  return report;
}

RankReport run_ranks(
    int world_size,
    const std::function<void(World)>& body,
    const RankOptions& options) {
  return run_ranks(
      world_size, [&body](World world, Rank&) { body(std::move(world)); },
      options);
}

void let_others_pass(const World& world, int leaver) {
  auto& store = *world.impl()->store;
  const auto key = [](int rank) { return str("test/past ", rank); };
  if (world.rank() != leaver) {
    store.set(key(world.rank()), std::string());
    return;
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank != leaver) {
      store.wait({key(rank)});
    }
  }
}

void expect_all_ok(const RankReport& report) {
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const ChildEnd& end = report.ranks[i];
    EXPECT_EQ(end.exit_code, 0)
        << "rank " << i << " of " << report.ranks.size()
        << (end.timed_out ? " ran into the time limit" : "") << ", signal "
        << end.signal << ", output:\n"
        << end.output;
  }
}

// Below the ports that the kernel gives to connections and to sockets that ask for any, of which
// there may be many before a rank listens at this one.
int free_port() {
  constexpr int kLowest = 10'000;
  int end = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> end;
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int port = end > kLowest
        ? std::uniform_int_distribution(kLowest, end - 1)(random)
        : 0;
    if (const Listener listener = listen_on_loopback(port); listener.fd >= 0) {
      ::close(listener.fd);
      return listener.port;
    }
  }
  throw Error("[test] expected a free port on the loopback address");
}

}  // namespace sherd::test
